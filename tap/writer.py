"""The thread that writes copied rows into parts, its bounded memory, and what becomes of failures."""

import contextlib
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from . import protocol
from .spool import Part, SpoolDirectory

logger = logging.getLogger("sglang.srt.auxtap")

IDLE_S = 0.5
STATS_EVERY_S = 0.2
PART_IDLE_S = 900.0
REMEMBERED_PARTS = 1 << 16


class PendingBudget:
    """Host bytes that hold copied but unwritten rows, never more than `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.peak = 0
        self._used = 0
        self._changed = threading.Condition()

    def acquire(self, n_bytes: int, timeout_s: float) -> bool:
        """Take `n_bytes`, waiting up to `timeout_s` for them; tell whether they were had."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._used + n_bytes <= self.limit, timeout_s):
                return False
            self._used += n_bytes
            self.peak = max(self.peak, self._used)
            return True

    def release(self, n_bytes: int) -> None:
        """Give `n_bytes` back."""
        with self._changed:
            self._used -= n_bytes
            self._changed.notify_all()


@dataclass(frozen=True)
class Begin:
    """Rows of a request are about to come, the first of them at `first_row`."""

    name: protocol.PartName
    layout: protocol.PartLayout
    first_row: int


@dataclass(frozen=True)
class Block:
    """Rows of one tensor. `read` waits for the copy and returns the bytes; they count `n_bytes` in the budget."""

    name: protocol.PartName
    slot: str
    first_row: int
    n_bytes: int
    read: Callable[[], memoryview]


@dataclass(frozen=True)
class End:
    """All blocks of these rows have been handed over."""

    name: protocol.PartName
    first_row: int
    n_rows: int


@dataclass(frozen=True)
class Failure:
    """A part will never be whole."""

    name: protocol.PartName
    reason: str


class Writer:
    """Owns all parts of this process. `submit` is called by the forward; everything else happens in its thread."""

    def __init__(
        self,
        spool: SpoolDirectory,
        descriptor: str,
        nonce: str,
        budget: PendingBudget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget = budget
        self._spool = spool
        self._stats_name = protocol.stats_name(descriptor)
        self._nonce = nonce
        self._clock = clock
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._parts: dict[protocol.PartName, Part] = {}
        self._touched: dict[protocol.PartName, float] = {}
        self._ended: OrderedDict[protocol.PartName, None] = OrderedDict()
        self._unpublished: dict[protocol.PartName, str] = {}
        self._stats = protocol.TapStats(nonce=nonce)
        self._stats_lock = threading.Lock()
        self._published_stats: protocol.TapStats | None = None
        self._published_at = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="auxtap-writer", daemon=True)

    def start(self) -> None:
        """Publish zero counters and begin to write."""
        self._publish_stats(force=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what was submitted, then end the thread."""
        self._stopping.set()
        self._jobs.put(None)
        self._thread.join()

    def submit(self, job: Begin | Block | End | Failure) -> None:
        """Hand a job to the thread; the bytes of a block were taken from the budget before."""
        self._jobs.put(job)

    def count(self, **increments: float) -> None:
        """Add to counters of `TapStats`."""
        with self._stats_lock:
            values = {name: getattr(self._stats, name) + value for name, value in increments.items()}
            self._stats = replace(self._stats, **values)

    def note_error(self, error: str) -> None:
        """Count an error and keep its text."""
        with self._stats_lock:
            self._stats = replace(self._stats, errors=self._stats.errors + 1, last_error=error[:500])
        logger.error("auxtap: %s", error)

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_S)
            except queue.Empty:
                job = None
                self._give_up_idle_parts()
            try:
                self._handle(job)
                self._publish_failures()
                self._publish_stats(force=job is None)
            except Exception as error:
                self.note_error(f"writer: {type(error).__name__}: {error}")
            if job is None and self._stopping.is_set() and self._jobs.empty():
                return

    def _handle(self, job: Begin | Block | End | Failure | None) -> None:
        if isinstance(job, Block):
            try:
                self._guarded(job, self._write)
            finally:
                self.budget.release(job.n_bytes)
        elif isinstance(job, Begin):
            self._guarded(job, self._begin)
        elif isinstance(job, End):
            self._guarded(job, self._finish)
        elif isinstance(job, Failure) and job.name not in self._ended:
            self._fail(job.name, job.reason)

    def _guarded(self, job: Any, act: Callable[[Any], None]) -> None:
        if job.name in self._ended:
            return
        try:
            act(job)
        except Exception as error:
            reason = f"{error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
            self._fail(job.name, f"writing the part failed: {reason}")

    def _begin(self, job: Begin) -> None:
        self._touched[job.name] = self._clock()
        if job.name in self._parts:
            return
        if job.first_row > 0:
            self._fail(
                job.name,
                f"its rows begin at {job.first_row}: the rows before came from the prefix cache; "
                "serve with --disable-radix-cache",
            )
            return
        # Nothing but a leftover of ours can bear this name: the directory is ours alone and rids are not used twice.
        self._spool.remove(str(job.name))
        self._parts[job.name] = Part(self._spool, job.name, job.layout, self._nonce)

    def _write(self, job: Block) -> None:
        self._parts[job.name].write_rows(job.slot, job.first_row, job.read())
        self.count(bytes_written=job.n_bytes)

    def _finish(self, job: End) -> None:
        part = self._parts[job.name]
        if part.cover(job.first_row, job.n_rows):
            part.seal()
            self._forget(job.name)
            self.count(parts_ready=1)

    def _fail(self, name: protocol.PartName, reason: str) -> None:
        part = self._parts.get(name)
        if part is not None:
            with contextlib.suppress(OSError):
                part.abandon()
        self._forget(name)
        self.count(parts_failed=1)
        self._unpublished[name] = reason
        logger.warning("auxtap: %s failed: %s", name.rid, reason)

    def _forget(self, name: protocol.PartName) -> None:
        self._parts.pop(name, None)
        self._touched.pop(name, None)
        self._ended[name] = None
        if len(self._ended) > REMEMBERED_PARTS:
            self._ended.popitem(last=False)

    def _publish_failures(self) -> None:
        for name, reason in list(self._unpublished.items()):
            record = protocol.FailureRecord(str(name.rid), self._nonce, reason)
            failed = protocol.PartName(name.rid, name.pp, name.dp, protocol.FAILED)
            try:
                self._spool.publish_json(str(failed), record.to_json())
            except OSError:
                return  # the spool is full: tried again at every later job and twice a second
            del self._unpublished[name]

    def _give_up_idle_parts(self) -> None:
        limit = self._clock() - PART_IDLE_S
        for name in [name for name, touched in self._touched.items() if touched < limit]:
            self._fail(name, f"no more rows came for {PART_IDLE_S:.0f} s")

    def _publish_stats(self, *, force: bool) -> None:
        with self._stats_lock:
            self._stats = replace(self._stats, peak_pending_bytes=self.budget.peak)
            stats = self._stats
        now = self._clock()
        if stats == self._published_stats or (not force and now - self._published_at < STATS_EVERY_S):
            return
        with contextlib.suppress(OSError):
            self._spool.publish_json(self._stats_name, stats.to_json())
            self._published_stats, self._published_at = stats, now
