"""What an extraction is asked to do, how it tells of itself, and what came of it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from auxtap.extraction.samples import Dataset


@dataclass(frozen=True)
class ExtractionJob:
    """One run of the extractor: `dataset` through the server at `server_url`, by way of `spool`, into `store`.

    `timeout_s` bounds one request, `parts_timeout_s` the wait for its parts after the server has answered;
    a server that has given no sign of life for `stall_timeout_s` while requests were out ends the run.
    `max_spool_bytes` bounds what is in flight plus what is written and not yet drained; None takes 80 % of
    the space that is free at the start.
    """

    dataset: Dataset
    server_url: str
    spool: Path
    store: Path
    part_format: str = "safetensors"
    max_new_tokens: int = 1
    concurrency: int = 16
    timeout_s: float = 600.0
    parts_timeout_s: float = 60.0
    stall_timeout_s: float = 120.0
    max_tries: int = 3
    backoff_s: float = 0.5
    max_spool_bytes: int | None = None


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
    elapsed_s: float = 0.0
    message: str | None = None


@dataclass(frozen=True)
class ExtractionSummary:
    """What a whole run came to.

    `stored`, `tokens` and `n_bytes` count what this run stored, `already_stored` what it found. `unattributed`
    counts forward batches whose rows the tap could not give to a request, `tap_errors` its other errors;
    `tap_last_error` is its own word for the last of them.
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
    not_stored: tuple[SampleFate, ...]

    @property
    def tokens_per_s(self) -> float:
        """Tokens that this run stored, by its wall-clock time."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def complete(self) -> bool:
        """Whether every sample is stored and the tap had nothing to complain of."""
        whole = self.stored + self.already_stored == self.n_samples
        return whole and not (self.unattributed or self.tap_errors or self.interrupted)


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
