"""One session with a store: the calling thread admits samples and tells of progress, workers carry them."""

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from auxtap.core.errors import ServerError
from auxtap.extraction.admission import Admission
from auxtap.extraction.client import ServerClient, ServerInfo
from auxtap.extraction.courier import Courier, fate_line, utc_now
from auxtap.extraction.formats.contract import PartContent, stored_content
from auxtap.extraction.heartbeat import Heartbeat
from auxtap.extraction.job import ExtractionJob, ExtractionSummary, StopRequest
from auxtap.extraction.ledger import FAILED, SKIPPED, STORED
from auxtap.extraction.parts import PartsWaiter, WritersWatch
from auxtap.extraction.samples import Sample
from auxtap.extraction.spool import SpoolDirectory
from auxtap.extraction.store import Store, part_metadata
from auxtap.extraction.tally import Tally
from auxtap.extraction.tap_watch import TapWatch
from auxtap.extraction.topology import stage_layout

TICK_S = 0.2
# The tap publishes its counters at the latest half a second after the last part (tap/writer.py, IDLE_S).
SETTLE_S = 0.8
# Once the run has failed, so long is what is in flight waited for.
GRACE_S = 2.0


@dataclass(frozen=True)
class Surroundings:
    """What a session works with, all of it open."""

    job: ExtractionJob
    spool: SpoolDirectory
    writers: WritersWatch
    client: ServerClient
    store: Store
    info: ServerInfo
    stop: StopRequest


@dataclass(frozen=True)
class _Parcel:
    sample: Sample
    n_bytes: int


class Session:
    """Brings the samples of a job to their fates."""

    def __init__(self, around: Surroundings, tally: Tally) -> None:
        """Set the bounds; nothing is sent yet."""
        job = around.job
        self._around = around
        self._tally = tally
        self._stop = around.stop
        budget = job.max_spool_bytes or max(1, around.spool.free_bytes() * 4 // 5)
        self._admission = Admission(job.concurrency, budget)
        self._watch = TapWatch(around.spool)
        self._told_at = 0.0
        # Set when the run cannot go on: workers give up what they carry.
        self._halted = threading.Event()
        self._heartbeat = Heartbeat(
            around.client.is_alive,
            lambda: self._admission.n_requests > 0,
            self._report_stall,
            stall_s=job.stall_timeout_s,
        )
        self._courier = Courier(
            job,
            around.spool,
            PartsWaiter(around.spool, around.writers, around.stop.now),
            around.client,
            around.store,
            around.stop,
            self._halted,
            self._heartbeat.note_sign,
        )
        self._parcels: queue.SimpleQueue[_Parcel | None] = queue.SimpleQueue()
        self._error_lock = threading.Lock()
        self._error: Exception | None = None

    def carry_out(self) -> ExtractionSummary:
        """Bring all samples to their fates, or as many as there is time for.

        Raises:
            ServerError: the server is gone or stuck.
            ExtractionError: the spool is gone, or its writers changed.
            OSError: the store cannot be written.
        """
        pending = self._find_pending()
        workers = [
            threading.Thread(target=self._work, name=f"courier-{number}", daemon=True)
            for number in range(min(self._around.job.concurrency, len(pending)))
        ]
        for worker in workers:
            worker.start()
        self._heartbeat.start()
        try:
            self._send(pending)
            self._drain()
        finally:
            self._heartbeat.stop()
            self._halted.set()
            for _ in workers:
                self._parcels.put(None)
        if self._error is not None:
            self._tell()
            raise self._error
        if pending:
            self._stop.now.wait(SETTLE_S)
        self._tell()
        return self._tally.summarize(asked_to_stop=self._stop.finish.is_set())

    def _find_pending(self) -> list[Sample]:
        """Count what the store holds already and return what is to be sent; too long samples are skipped."""
        head = self._around.writers.topology.head
        longest = min(head.context_length - 1, self._around.info.longest_prompt or 1 << 62)
        pending = []
        for sample in self._around.job.dataset.samples:
            if self._holds(sample):
                self._tally.add_already_stored(sample.n_tokens)
            elif sample.n_tokens > longest:
                self._skip(sample, f"{sample.n_tokens} tokens are more than the server takes ({longest})")
            else:
                last = self._around.store.last_line(sample.sample_id)
                if last is not None and last.fate == STORED:
                    self._tally.say(f"{sample.sample_id}: its stored files are not whole; taken again")
                pending.append(sample)
        self._tell()
        return pending

    def _holds(self, sample: Sample) -> bool:
        stages = {stage.pp_rank: stage for stage in self._around.writers.topology.stages}

        def contents(stage: int, tap_digest: str) -> PartContent:
            metadata = part_metadata(sample.index, sample.sample_id, stage, tap_digest)
            return stored_content(stage_layout(stages[stage], sample.n_tokens), metadata)

        return self._around.store.holds(sample, contents)

    def _skip(self, sample: Sample, reason: str) -> None:
        line = fate_line(sample, SKIPPED, reason, 0, (), utc_now())
        last = self._around.store.last_line(sample.sample_id)
        if last is None or (last.fate, last.reason) != (SKIPPED, reason):
            self._around.store.record(line)
        self._tally.add_fate(line)

    def _send(self, pending: Sequence[Sample]) -> None:
        for sample in pending:
            n_bytes = self._around.writers.topology.spool_bytes(sample.n_tokens)
            if n_bytes > self._admission.max_bytes:
                reason = f"it takes {n_bytes} bytes of spool, more than the bound of {self._admission.max_bytes}"
                line = fate_line(sample, FAILED, reason, 0, (), utc_now())
                self._around.store.record(line)
                self._tally.add_fate(line)
                continue
            while not self._admission.acquire(n_bytes, TICK_S):
                self._tell()
                if self._ending():
                    return
            # Put even when the run is ending: whoever takes it releases the room, carrying it or not.
            self._parcels.put(_Parcel(sample, n_bytes))
            if self._ending():
                return
            if time.monotonic() - self._told_at >= TICK_S:
                self._tell()

    def _ending(self) -> bool:
        return self._stop.finish.is_set() or self._halted.is_set()

    def _drain(self) -> None:
        """Wait for what is in flight, not for ever once the run has failed."""
        give_up: float | None = None
        while not self._admission.wait_until_idle(TICK_S):
            self._tell()
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
                        self._tally.add_fate(line)
            except Exception as error:
                self._fail(error)
            finally:
                self._admission.release(parcel.n_bytes)

    def _fail(self, error: Exception) -> None:
        """End the run with its first error; those that follow are of the same making."""
        with self._error_lock:
            if self._error is None and not self._stop.now.is_set():
                self._error = error
            self._halted.set()

    def _report_stall(self, seconds: float) -> None:
        self._fail(
            ServerError(
                f"server {self._around.client.url} is stuck: no sign of life for {seconds:.0f} s",
                hint="look at its log, start it again, and run the same command again: it continues",
            )
        )

    def _tell(self) -> None:
        """Look at the tap's counters and tell the observer."""
        self._told_at = time.monotonic()
        self._tally.note_trouble(self._watch.poll())
        self._tally.tell(in_flight=self._admission.n_requests, spool_bytes=self._admission.n_bytes)
