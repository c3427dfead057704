"""One session with a store: the calling thread sends samples and tells of progress, others send and store them."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from auxtap.core.errors import ExtractionError, ServerError
from auxtap.extraction.run.fleet import Fleet
from auxtap.extraction.run.job import ExtractionJob, ExtractionSummary, StopRequest
from auxtap.extraction.run.pending import find_pending
from auxtap.extraction.run.request_runner import (
    ATTEMPTS_A_SESSION,
    Outcome,
    Received,
    Refused,
    Rejected,
    RequestRunner,
    ServerGone,
    TryAgain,
    fate_line,
)
from auxtap.extraction.run.storing import ReceivedSample, StoringThreads, received_files
from auxtap.extraction.run.tally import Tally
from auxtap.extraction.servers.endpoint import Endpoint, Lease
from auxtap.extraction.servers.sequence import QueuedSample, SendingQueue
from auxtap.extraction.spool.parts import PartRejectedError
from auxtap.extraction.spool.tap_watch import TapWatch
from auxtap.extraction.store.ledger import FAILED, LedgerLine
from auxtap.extraction.store.store import Store
from auxtap.tap.protocol import RequestId

TICK_S = 0.2
# The tap publishes its counters at the latest half a second after the last part (tap/writer.py, IDLE_S).
SETTLE_S = 0.8
# Once the run has failed, so long is what is in flight waited for.
GRACE_S = 2.0
# So many servers may go away under a sample before it is suspected of killing them.
MAX_HANDOVERS = 10


@dataclass(frozen=True)
class SessionContext:
    """What a session works with, all of it open."""

    job: ExtractionJob
    fleet: Fleet
    store: Store
    stop: StopRequest


class Session:
    """Brings the samples of a job to their fates."""

    def __init__(self, around: SessionContext, tally: Tally) -> None:
        """Set the bounds; nothing is sent yet."""
        job = around.job
        self._job = job
        self._fleet = around.fleet
        self._store = around.store
        self._stop = around.stop
        self._tally = tally
        self._watches = [TapWatch(replica.spool) for end in around.fleet.endpoints for replica in end.replicas]
        self._told_at = 0.0
        # When a server was last on its way back.
        self._kept_at = 0.0
        # Set when the run cannot go on: whatever is carried is given up.
        self._halted = threading.Event()
        self._changed = threading.Event()
        self._runner = RequestRunner(job, around.stop, self._halted)
        self._storing = StoringThreads(around.store, job, self._settle_received, self._halted, tally.say)
        self._queue = SendingQueue(())
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._stopped = ""

    def carry_out(self) -> ExtractionSummary:
        """Bring all samples to their fates, or as many as there is time for.

        Raises:
            ServerError: every server is gone or stuck.
            ExtractionError: a spool is gone, or its writers changed, or the store has no room for what is to come.
            OSError: the store cannot be written.
        """
        queued_samples = find_pending(self._job, self._fleet, self._store, self._tally)
        self._queue = SendingQueue(queued_samples)
        self._tell()
        self._storing.start()
        self._fleet.watch(self._job.stall_timeout_s, self._lose, self._fail, self._changed.set)
        began = time.monotonic()
        try:
            self._send_all()
            self._wait_for_what_is_out()
            carried_s = time.monotonic() - began
        finally:
            self._fleet.watch_no_longer()
            self._halted.set()
            self._storing.stop()
        if self._error is not None:
            self._tell()
            raise self._error
        if queued_samples:
            self._stop.now.wait(SETTLE_S)
        self._tell()
        return self._tally.summarize(
            asked_to_stop=self._stop.finish.is_set(),
            stopped=self._stopped,
            carried_s=carried_s,
            peak_spool_bytes=self._fleet.peak_spool_bytes,
        )

    def _send_all(self) -> None:
        """Send samples as there is room, until none is left, out, or to be sent again."""
        while not self._ending():
            self._changed.clear()
            try:
                self._fleet.check_spools()
            except ExtractionError as error:
                self._fail(error)
                return
            sent = self._send_one()
            if not sent and not len(self._queue) and not self._fleet.n_unsettled:
                return
            if not sent:
                self._changed.wait(max(0.01, min(TICK_S, self._queue.next_due_s())))
            if time.monotonic() - self._told_at >= TICK_S:
                self._tell()
                self._fleet.clear_orphans()
                self._look_after_room()
                self._look_for_servers()

    def _send_one(self) -> bool:
        found = self._queue.take(self._fleet.choose)
        if found is None:
            return False
        queued, endpoint = found
        if queued.number == ATTEMPTS_A_SESSION - 1:
            self._end(queued, FAILED, "it was sent too often in one session", queued.tries)
            return True
        queued.number += 1
        queued.began = queued.began or time.monotonic()
        manifest = self._store.manifest
        attempt = manifest.sessions * ATTEMPTS_A_SESSION + queued.number
        lease = endpoint.lease(queued, RequestId(manifest.run, queued.sample.index, attempt))
        if lease is None:
            self._queue.put_back(queued, 0.0)
            return False
        # A thread for each request: one that hangs in a dead server's connection costs nothing but itself.
        threading.Thread(target=self._carry, args=(endpoint, lease), name="request", daemon=True).start()
        return True

    def _carry(self, endpoint: Endpoint, lease: Lease) -> None:
        try:
            outcome = self._runner.fetch(endpoint, lease)
            if isinstance(outcome, ServerGone):
                self._lose(endpoint, f"gone or stuck: {outcome.reason}")
            elif outcome is None:
                if not lease.revoked:  # else it was counted, and is cleared, where it was taken away
                    endpoint.close(lease)
                    endpoint.settle(lease)
            elif endpoint.end_request(lease):
                self._settle(endpoint, lease, outcome)
        except Exception as error:
            self._fail(error)
        finally:
            self._changed.set()

    def _settle(self, endpoint: Endpoint, lease: Lease, outcome: Outcome) -> None:
        queued = lease.queued
        match outcome:
            case Received(parts):
                self._storing.put(ReceivedSample(endpoint, lease, parts))
                return
            case Rejected(error):
                self._reject(endpoint, lease, error)
                return
            case Refused(reason):
                self._discard(endpoint, lease)
                self._end(queued, FAILED, reason, queued.tries + 1)
            case TryAgain(reason, delay_s, lingering):
                if lingering:
                    endpoint.orphan(lease, self._job.parts_timeout_s)
                else:
                    self._discard(endpoint, lease)
                self._send_again(queued, reason, delay_s)
        endpoint.settle(lease)

    def _settle_received(self, received: ReceivedSample, store_it: Callable[[], LedgerLine]) -> None:
        """Settle a sample; called by the storing threads."""
        endpoint, lease = received.endpoint, received.lease
        try:
            if self._halted.is_set() or self._stop.now.is_set():
                self._discard(endpoint, lease)
                return
            line = store_it()
            self._discard(endpoint, lease)
            self._tally.add_fate(line)
        except PartRejectedError as error:
            self._reject(endpoint, lease, error)
        except Exception as error:
            self._fail(error)
            with contextlib.suppress(OSError):  # the spool may be closed when this was waited for too long
                self._discard(endpoint, lease)
        finally:
            endpoint.settle(lease)
            self._changed.set()

    def _reject(self, endpoint: Endpoint, lease: Lease, error: PartRejectedError) -> None:
        """Take note that a sample's parts are not to be believed, or did not come."""
        queued = lease.queued
        try:
            last = error.final or queued.tries + 1 >= self._job.max_tries
            if error.received and last:
                label = f"{queued.sample.index:08d}.attempt{lease.rid.attempt}"
                self._store.quarantine(label, error.reason, received_files(endpoint, lease))
            if error.received or endpoint.waiter.has_ended(lease.rid):
                self._discard(endpoint, lease)
            else:
                endpoint.orphan(lease, self._job.parts_timeout_s)
            if error.final:
                self._end(queued, FAILED, error.reason, queued.tries + 1)
            else:
                self._send_again(queued, error.reason)
        except Exception as failure:
            self._fail(failure)
        finally:
            endpoint.settle(lease)

    def _discard(self, endpoint: Endpoint, lease: Lease) -> None:
        endpoint.waiter.discard(lease.rid)
        endpoint.close(lease)

    def _send_again(self, queued: QueuedSample, reason: str, delay_s: float = 0.0) -> None:
        # Before a sample is blamed for what is no fault of its own.
        self._fleet.check_spools()
        queued.tries += 1
        self._tally.note_error(f"{queued.sample.sample_id}: {reason}")
        if queued.tries >= self._job.max_tries:
            self._end(queued, FAILED, reason, queued.tries)
        else:
            self._queue.put_back(queued, max(delay_s, self._job.backoff_s * 2 ** (queued.tries - 1)))

    def _end(self, queued: QueuedSample, fate: str, reason: str, attempts: int) -> None:
        line = fate_line(queued.sample, fate, reason, attempts, seconds=queued.seconds)
        self._store.record(line)
        self._tally.add_fate(line)
        if self._job.max_failures is not None and self._tally.n_failed > self._job.max_failures:
            self._stopped = f"{self._tally.n_failed} samples failed, more than the {self._job.max_failures} allowed"

    def _lose(self, endpoint: Endpoint, reason: str) -> None:
        """Take a server for gone and have others carry what it had."""
        lost = endpoint.leave(reason, self._job.parts_timeout_s)
        if lost:
            self._tally.say(f"server {endpoint.url} is {reason}; {len(lost)} samples are handed on")
        self._tally.note_error(f"server {endpoint.url} is {reason}")
        for lease in lost:
            queued = lease.queued
            queued.handovers += 1
            if queued.handovers > MAX_HANDOVERS:
                self._end(queued, FAILED, f"{queued.handovers} times its server went away", queued.tries + 1)
            else:
                self._queue.put_back(queued, 0.0)
            endpoint.settle(lease)
        self._changed.set()

    def _look_for_servers(self) -> None:
        """End the run when every server has been gone for too long and none is being started again."""
        gone = self._fleet.longest_living_gone()
        if gone is None:
            return
        if self._fleet.is_coming_back():
            self._kept_at = time.monotonic()
        elif time.monotonic() - max(gone.gone_since, self._kept_at) >= self._job.wait_for_server_s:
            self._fail(
                ServerError(
                    f"server {gone.url} is {gone.gone}",
                    hint="look at its log, start it again, and run the same command again: it continues",
                )
            )

    def _look_after_room(self) -> None:
        free = self._store.free_bytes()
        if self._job.reserve_bytes and free is not None and free < self._job.reserve_bytes:
            self._fail(
                ExtractionError(
                    f"store {self._store.path} has {free:,} bytes left, "
                    f"of which {self._job.reserve_bytes:,} are to stay free",
                    hint="what is stored stays; make room, then run the same command again",
                )
            )

    def _ending(self) -> bool:
        return self._stop.finish.is_set() or self._halted.is_set() or bool(self._stopped)

    def _wait_for_what_is_out(self) -> None:
        """Wait for what is in flight, not for ever once the run has failed."""
        give_up: float | None = None
        while self._fleet.n_unsettled and not self._stop.now.is_set():
            self._changed.wait(TICK_S)
            self._changed.clear()
            self._tell()
            if not self._halted.is_set():
                self._look_for_servers()
            if self._halted.is_set():
                give_up = give_up or time.monotonic() + GRACE_S
                if time.monotonic() > give_up:
                    return

    def _fail(self, error: Exception) -> None:
        """End the run with its first error; those that follow are of the same making."""
        with self._lock:
            if self._error is None and not self._stop.now.is_set():
                self._error = error
            self._halted.set()
        self._changed.set()

    def _tell(self) -> None:
        """Look at the taps' counters and tell the observer."""
        self._told_at = time.monotonic()
        self._tally.note_trouble([watch.poll() for watch in self._watches])
        self._tally.tell(self._fleet.traffic())
