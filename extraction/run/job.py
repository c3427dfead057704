"""What an extraction is asked to do, how it tells of itself, and what came of it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from auxtap.extraction.datasets.reading import Dataset


@dataclass(frozen=True)
class ServerPlace:
    """One server: its URL and every spool that its writers fill.

    There are several spools when its stages run on several hosts, or when the URL is a router's and each server
    behind it has its own.
    """

    url: str
    spools: tuple[Path, ...]


@dataclass(frozen=True)
class Shard:
    """Part `number` of `count`: every `count`-th sample, counted from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def takes(self, index: int) -> bool:
        """Tell whether a sample is in this shard."""
        return index % self.count == self.number - 1

    def n_samples(self, n_samples: int) -> int:
        """Return how many of a dataset's samples are in this shard."""
        return len(range(self.number - 1, n_samples, self.count))


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is carried out, wherever its server and its store are.

    `concurrency` bounds the requests of one server, `timeout_s` one request, `parts_timeout_s` the wait for its parts
    after the server has answered. A server that has given no sign of life for `stall_timeout_s` while requests were out
    is taken for gone; when all are, the run waits `wait_for_server_s` for one to come back, then ends.
    `max_spool_bytes` bounds what is in flight plus what is written and not yet drained, of all servers together;
    None takes 80 % of the space that is free at the start. The run ends when more than `max_failures` samples have
    failed.
    """

    part_format: str = "safetensors"
    max_new_tokens: int = 1
    concurrency: int = 16
    drain_threads: int = 4
    timeout_s: float = 600.0
    parts_timeout_s: float = 60.0
    stall_timeout_s: float = 120.0
    wait_for_server_s: float = 0.0
    max_tries: int = 3
    max_failures: int | None = None
    max_spool_bytes: int | None = None
    max_bytes: int | None = None
    reserve_bytes: int = 0


@dataclass(frozen=True)
class ExtractionJob(RunOptions):
    """One run of the extractor: `dataset` through the server at `server_url`, by way of `spool`, into `store`.

    `extra_spools` are further ones of that server, `more_servers` share the work with it. `samples_url` is an fsspec
    URL that takes the samples instead of the folder `store`. `run` are the eight hexadecimal digits that the requests
    of a new store bear; None draws them.
    """

    dataset: Dataset
    server_url: str
    spool: Path
    store: Path
    extra_spools: tuple[Path, ...] = ()
    more_servers: tuple[ServerPlace, ...] = ()
    samples_url: str | None = None
    shard: Shard | None = None
    run: str | None = None
    backoff_s: float = 0.5
    store_tries: int = 6

    @property
    def places(self) -> tuple[ServerPlace, ...]:
        """All servers."""
        return (ServerPlace(self.server_url, (self.spool, *self.extra_spools)), *self.more_servers)


@dataclass(frozen=True)
class SampleFate:
    """How one sample ended: `fate` is stored, skipped or failed; `reason` says why it was not stored."""

    index: int
    sample_id: str
    fate: str
    reason: str = ""


@dataclass(frozen=True)
class ExtractionProgress:
    """A snapshot of a running extraction; `message` is set when something happened that a person should read."""

    n_samples: int
    n_tokens: int
    already_stored: int = 0
    stored: int = 0
    skipped: int = 0
    failed: int = 0
    in_flight: int = 0
    tokens_done: int = 0
    tokens_stored: int = 0
    bytes_stored: int = 0
    spool_bytes: int = 0
    spool_limit: int = 0
    servers_up: int = 0
    servers: int = 0
    elapsed_s: float = 0.0
    last_error: str = ""
    message: str | None = None


@dataclass(frozen=True)
class ExtractionSummary:
    """What a whole run came to.

    `stored`, `tokens` and `n_bytes` count what this run stored, `already_stored` what it found. `unattributed`
    counts forward batches whose rows the tap could not give to a request, `tap_errors` its other errors;
    `carried_s` is the time from the first request to the last sample's fate.
    `tap_last_error` is its own word for the last of them. `stopped` says why the run ended before its time, empty
    when it did not or was asked to.
    """

    n_samples: int
    stored: int
    already_stored: int
    skipped: int
    failed: int
    tokens: int
    n_bytes: int
    seconds: float
    unattributed: int
    tap_errors: int
    tap_last_error: str
    interrupted: bool
    stopped: str
    carried_s: float
    peak_spool_bytes: int
    not_stored: tuple[SampleFate, ...]

    @property
    def tokens_per_s(self) -> float:
        """Tokens that this run stored, by its wall-clock time."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def outcome(self) -> str:
        """How it ended, in a few words."""
        if self.stopped:
            return f"stopped: {self.stopped}"
        if self.interrupted:
            return "interrupted"
        return "complete" if self.complete else "some samples are not stored"

    @property
    def complete(self) -> bool:
        """Whether every sample is stored and the tap had nothing to complain of."""
        whole = self.stored + self.already_stored == self.n_samples
        return whole and not (self.unattributed or self.tap_errors or self.interrupted or self.stopped)


@dataclass(frozen=True)
class StopRequest:
    """Ask a running extraction to end: `finish` what is in flight, or `now`; both leave a store to go on from."""

    finish: threading.Event = field(default_factory=threading.Event)
    now: threading.Event = field(default_factory=threading.Event)

    def escalate(self) -> None:
        """Ask to finish; asked again, stop now."""
        if self.finish.is_set():
            self.now.set()
        self.finish.set()


Observer = Callable[[ExtractionProgress], None]


def ignore_progress(progress: ExtractionProgress) -> None:
    """Observe nothing."""
