"""Keep count of a run and tell of it; several threads add, one tells."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from auxtap.extraction.run.job import ExtractionJob, ExtractionProgress, ExtractionSummary, Observer, SampleFate
from auxtap.extraction.spool.tap_watch import TapTrouble
from auxtap.extraction.store.ledger import FAILED, STORED, LedgerLine


@dataclass(frozen=True)
class Traffic:
    """What is on its way at a moment, through all servers."""

    in_flight: int
    spool_bytes: int
    spool_limit: int
    servers_up: int
    servers: int


class Tally:
    """The figures of one run."""

    def __init__(self, job: ExtractionJob, observe: Observer, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin at zero; `observe` is called by `tell` only."""
        self._observe = observe
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()
        self._messages: deque[str] = deque()
        self._not_stored: list[SampleFate] = []
        self._trouble = TapTrouble()
        samples = [s for s in job.dataset.samples if job.shard is None or job.shard.takes(s.index)]
        self._progress = ExtractionProgress(len(samples), sum(sample.n_tokens for sample in samples))

    def say(self, message: str) -> None:
        """Leave a message for the observer."""
        self._messages.append(message)

    def add_already_stored(self, n_tokens: int) -> None:
        """Count a sample that an earlier run has stored."""
        self._add(already_stored=1, tokens_done=n_tokens)

    def add_fate(self, line: LedgerLine) -> None:
        """Count a sample's fate; one that is not stored is a message too."""
        if line.fate == STORED:
            n_bytes = sum(part.n_bytes for part in line.parts)
            self._add(stored=1, tokens_done=line.n_tokens, tokens_stored=line.n_tokens, bytes_stored=n_bytes)
            return
        with self._lock:
            self._not_stored.append(SampleFate(line.index, line.sample_id, line.fate, line.reason))
        self.say(f"{line.sample_id}: {line.fate}: {line.reason}")
        if line.fate == FAILED:
            self.note_error(f"{line.sample_id}: {line.reason}")
        self._add(**{line.fate: 1, "tokens_done": line.n_tokens})

    def note_trouble(self, troubles: Sequence[TapTrouble]) -> None:
        """Take what the taps report of themselves; news is a message."""
        trouble = TapTrouble(
            sum(each.unattributed for each in troubles),
            sum(each.errors for each in troubles),
            next((each.last_error for each in troubles if each.last_error), ""),
        )
        if trouble != self._trouble:
            self._trouble = trouble
            self.say(
                f"the tap reports {trouble.unattributed} unattributed batches and {trouble.errors} errors"
                + (f": {trouble.last_error}" if trouble.last_error else "")
            )

    def note_error(self, error: str) -> None:
        """Keep the last thing that went wrong, fate or not."""
        with self._lock:
            self._progress = replace(self._progress, last_error=error)

    @property
    def n_failed(self) -> int:
        """Samples that have failed in this run."""
        return self._progress.failed

    def tell(self, traffic: Traffic) -> None:
        """Hand all messages and the state of things to the observer."""
        with self._lock:
            progress = replace(self._progress, elapsed_s=self._clock() - self._started, **asdict(traffic))
        while self._messages:
            self._observe(replace(progress, message=self._messages.popleft()))
        self._observe(progress)

    def summarize(
        self, *, asked_to_stop: bool, stopped: str, peak_spool_bytes: int, carried_s: float
    ) -> ExtractionSummary:
        """Return what the run came to."""
        with self._lock:
            progress, not_stored = self._progress, sorted(self._not_stored, key=lambda fate: fate.index)
        n_settled = progress.already_stored + progress.stored + progress.skipped + progress.failed
        return ExtractionSummary(
            n_samples=progress.n_samples,
            stored=progress.stored,
            already_stored=progress.already_stored,
            skipped=progress.skipped,
            failed=progress.failed,
            tokens=progress.tokens_stored,
            n_bytes=progress.bytes_stored,
            seconds=self._clock() - self._started,
            unattributed=self._trouble.unattributed,
            tap_errors=self._trouble.errors,
            tap_last_error=self._trouble.last_error,
            interrupted=asked_to_stop and n_settled < progress.n_samples,
            stopped=stopped,
            carried_s=carried_s,
            peak_spool_bytes=peak_spool_bytes,
            not_stored=tuple(not_stored),
        )

    def _add(self, **increments: int) -> None:
        with self._lock:
            values = {name: getattr(self._progress, name) + value for name, value in increments.items()}
            self._progress = replace(self._progress, **values)
