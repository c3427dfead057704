"""Run an extraction: requests out, parts in, every sample to a fate."""

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from auxtap.core.errors import UsageError
from auxtap.extraction.admission import Admission
from auxtap.extraction.client import ServerClient, ServerInfo
from auxtap.extraction.courier import ATTEMPTS_A_SESSION, Courier, fate_line, utc_now
from auxtap.extraction.describe import describe_run
from auxtap.extraction.formats.contract import PartContent, part_format, stored_content
from auxtap.extraction.job import (
    ExtractionJob,
    ExtractionProgress,
    ExtractionSummary,
    Observer,
    SampleFate,
    StopRequest,
    ignore_progress,
)
from auxtap.extraction.ledger import FAILED, SKIPPED, STORED, LedgerLine
from auxtap.extraction.parts import PartsWaiter, WritersWatch
from auxtap.extraction.samples import Sample
from auxtap.extraction.spool import SpoolDirectory
from auxtap.extraction.store import Store, open_store, part_metadata
from auxtap.extraction.tap_watch import TapTrouble, TapWatch
from auxtap.extraction.topology import stage_layout

__all__ = [
    "ExtractionJob",
    "ExtractionProgress",
    "ExtractionSummary",
    "Observer",
    "SampleFate",
    "StopRequest",
    "ignore_progress",
    "run_extraction",
]

TICK_S = 0.2
# The tap publishes its counters at the latest half a second after the last part (tap/writer.py, IDLE_S).
SETTLE_S = 0.8
GRACE_S = 15.0


def run_extraction(
    job: ExtractionJob, observe: Observer = ignore_progress, *, stop: StopRequest | None = None
) -> ExtractionSummary:
    """Extract every sample of the job that its store does not hold yet.

    `observe` is called in this thread only.

    Raises:
        UsageError: the job asks for something that cannot be.
        ServerError: the server cannot be reached, or went away in the middle.
        ExtractionError: dataset, spool or store are not fit for the job; what is stored stays.
        IntegrityError: the store's manifest or ledger are unreadable.
    """
    _check_job(job)
    with (
        SpoolDirectory(job.spool) as spool,
        ServerClient(job.server_url, connections=job.concurrency, timeout_s=job.timeout_s) as client,
    ):
        writers = WritersWatch(spool)
        info = client.read_info()
        job.dataset.check_vocabulary(writers.topology.head.vocab_size)
        messages: deque[str] = deque()
        if info.model_path and info.model_path != writers.topology.head.model_path:
            messages.append(
                f"the server says it serves {info.model_path}, the spool is written by one that serves "
                f"{writers.topology.head.model_path}"
            )
        wanted = describe_run(job.part_format, job.dataset, writers.topology, info)
        with open_store(job.store, wanted, messages.append) as store:
            first_attempt = store.manifest.sessions * ATTEMPTS_A_SESSION
            spool.sweep(store.manifest.run, first_attempt)
            run = _Run(job, spool, writers, client, store, info, observe, stop or StopRequest(), messages)
            try:
                return run.carry_out()
            finally:
                spool.sweep(store.manifest.run, first_attempt + ATTEMPTS_A_SESSION)


def _check_job(job: ExtractionJob) -> None:
    part_format(job.part_format)
    if job.max_new_tokens not in (0, 1):
        raise UsageError(f"max new tokens is {job.max_new_tokens}; a prompt needs 0 or 1")
    if not 1 <= job.concurrency <= 1024:
        raise UsageError(f"concurrency is {job.concurrency}; it goes from 1 to 1024")
    if not 1 <= job.max_tries < ATTEMPTS_A_SESSION:
        raise UsageError(f"tries are {job.max_tries}; they go from 1 to {ATTEMPTS_A_SESSION - 1}")
    if job.timeout_s <= 0 or job.parts_timeout_s <= 0:
        raise UsageError("timeouts must be positive")
    if job.max_spool_bytes is not None and job.max_spool_bytes <= 0:
        raise UsageError("the spool's bound must be positive")


@dataclass(frozen=True)
class _Parcel:
    sample: Sample
    n_bytes: int


class _Run:
    """One session: the calling thread admits samples and tells of progress, workers carry them."""

    def __init__(
        self,
        job: ExtractionJob,
        spool: SpoolDirectory,
        writers: WritersWatch,
        client: ServerClient,
        store: Store,
        info: ServerInfo,
        observe: Observer,
        stop: StopRequest,
        messages: deque[str],
    ) -> None:
        self._job = job
        self._writers = writers
        self._store = store
        self._observe = observe
        self._stop = stop
        self._messages = messages
        budget = job.max_spool_bytes or max(1, spool.free_bytes() * 4 // 5)
        self._admission = Admission(job.concurrency, budget)
        self._longest = min(writers.topology.head.context_length - 1, info.longest_prompt or 1 << 62)
        self._watch = TapWatch(spool)
        self._trouble = TapTrouble()
        self._polled_at = 0.0
        # Set when the run cannot go on: workers give up what they carry.
        self._halted = threading.Event()
        self._courier = Courier(job, spool, PartsWaiter(spool, writers, stop.now), client, store, stop, self._halted)
        self._parcels: queue.SimpleQueue[_Parcel | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._not_stored: list[SampleFate] = []
        self._started = time.monotonic()
        self._progress = ExtractionProgress(len(job.dataset.samples), job.dataset.n_tokens)

    def carry_out(self) -> ExtractionSummary:
        """Bring all samples to their fates, or as many as there is time for."""
        pending = self._find_pending()
        workers = [
            threading.Thread(target=self._work, name=f"courier-{number}", daemon=True)
            for number in range(min(self._job.concurrency, len(pending)))
        ]
        for worker in workers:
            worker.start()
        try:
            self._send(pending)
            self._drain()
        finally:
            self._halted.set()
            for _ in workers:
                self._parcels.put(None)
        if self._error is not None:
            self._tick()
            raise self._error
        if pending:
            self._stop.now.wait(SETTLE_S)
        return self._summarize()

    def _find_pending(self) -> list[Sample]:
        """Count what the store holds already and return what is to be sent; too long samples are settled."""
        stages = {stage.pp_rank: stage for stage in self._writers.topology.stages}
        pending = []
        for sample in self._job.dataset.samples:

            def contents(stage: int, tap_digest: str, sample: Sample = sample) -> PartContent:
                metadata = part_metadata(sample.index, sample.sample_id, stage, tap_digest)
                return stored_content(stage_layout(stages[stage], sample.n_tokens), metadata)

            if self._store.holds(sample, contents):
                self._add(already_stored=1, tokens_done=sample.n_tokens)
            elif sample.n_tokens > self._longest:
                reason = f"{sample.n_tokens} tokens are more than the server takes ({self._longest})"
                self._skip(sample, reason)
            else:
                line = self._store.last_line(sample.sample_id)
                if line is not None and line.fate == STORED:
                    self._messages.append(f"{sample.sample_id}: its stored files are not whole; taken again")
                pending.append(sample)
        self._tick()
        return pending

    def _skip(self, sample: Sample, reason: str) -> None:
        last = self._store.last_line(sample.sample_id)
        if last is None or (last.fate, last.reason) != (SKIPPED, reason):
            self._store.record(fate_line(sample, SKIPPED, reason, 0, (), utc_now()))
        self._settle(SampleFate(sample.index, sample.sample_id, SKIPPED, reason), sample.n_tokens)

    def _send(self, pending: Sequence[Sample]) -> None:
        for sample in pending:
            n_bytes = self._writers.topology.spool_bytes(sample.n_tokens)
            if n_bytes > self._admission.max_bytes:
                reason = f"it takes {n_bytes} bytes of spool, more than the bound of {self._admission.max_bytes}"
                self._store.record(fate_line(sample, FAILED, reason, 0, (), utc_now()))
                self._settle(SampleFate(sample.index, sample.sample_id, FAILED, reason), sample.n_tokens)
                continue
            while not self._ending():
                if self._admission.acquire(n_bytes, TICK_S):
                    self._parcels.put(_Parcel(sample, n_bytes))
                    break
                self._tick()
            if self._ending():
                return
            self._tick_sometimes()

    def _ending(self) -> bool:
        return self._stop.finish.is_set() or self._halted.is_set()

    def _drain(self) -> None:
        """Wait for what is in flight, not for ever once the run has failed."""
        give_up: float | None = None
        while not self._admission.wait_until_idle(TICK_S):
            self._tick()
            if self._stop.now.is_set():
                return
            if self._halted.is_set():
                give_up = give_up or time.monotonic() + GRACE_S
                if time.monotonic() > give_up:
                    return

    def _work(self) -> None:
        while (parcel := self._parcels.get()) is not None:
            try:
                if not self._halted.is_set() and not self._stop.now.is_set():
                    line = self._courier.carry(parcel.sample)
                    if line is not None:
                        self._settle_line(line)
            except Exception as error:
                self._fail(error)
            finally:
                self._admission.release(parcel.n_bytes)

    def _fail(self, error: Exception) -> None:
        """End the run with its first error; those that follow are of the same making."""
        with self._lock:
            if self._error is None and not self._stop.now.is_set():
                self._error = error
            self._halted.set()

    def _settle_line(self, line: LedgerLine) -> None:
        if line.fate != STORED:
            self._settle(SampleFate(line.index, line.sample_id, line.fate, line.reason), line.n_tokens)
            return
        n_bytes = sum(part.n_bytes for part in line.parts)
        self._add(stored=1, tokens_done=line.n_tokens, tokens_stored=line.n_tokens, bytes_stored=n_bytes)

    def _settle(self, fate: SampleFate, n_tokens: int) -> None:
        with self._lock:
            self._not_stored.append(fate)
        self._messages.append(f"{fate.sample_id}: {fate.fate}: {fate.reason}")
        self._add(**{fate.fate: 1, "tokens_done": n_tokens})

    def _add(self, **increments: int) -> None:
        with self._lock:
            values = {name: getattr(self._progress, name) + value for name, value in increments.items()}
            self._progress = replace(self._progress, **values)

    def _tick_sometimes(self) -> None:
        if time.monotonic() - self._polled_at >= TICK_S:
            self._tick()

    def _tick(self) -> None:
        """Look at the tap's counters and tell the observer."""
        self._polled_at = time.monotonic()
        trouble = self._watch.poll()
        if trouble != self._trouble:
            self._trouble = trouble
            self._messages.append(
                f"the tap reports {trouble.unattributed} unattributed batches and {trouble.errors} errors"
                + (f": {trouble.last_error}" if trouble.last_error else "")
            )
        with self._lock:
            progress = replace(
                self._progress,
                in_flight=self._admission.n_requests,
                spool_bytes=self._admission.n_bytes,
                elapsed_s=time.monotonic() - self._started,
            )
        while self._messages:
            self._observe(replace(progress, message=self._messages.popleft()))
        self._observe(progress)

    def _summarize(self) -> ExtractionSummary:
        seconds = time.monotonic() - self._started
        self._tick()
        progress = self._progress
        n_settled = progress.already_stored + progress.stored + progress.skipped + progress.failed
        return ExtractionSummary(
            n_samples=progress.n_samples,
            stored=progress.stored,
            already_stored=progress.already_stored,
            skipped=progress.skipped,
            failed=progress.failed,
            tokens=progress.tokens_stored,
            n_bytes=progress.bytes_stored,
            seconds=seconds,
            unattributed=self._trouble.unattributed,
            tap_errors=self._trouble.errors,
            tap_last_error=self._trouble.last_error,
            interrupted=self._stop.finish.is_set() and n_settled < progress.n_samples,
            not_stored=tuple(sorted(self._not_stored, key=lambda fate: fate.index)),
        )
