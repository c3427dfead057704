"""Bring received parts from the spool into the store: threads of their own, so that the next prompts run meanwhile."""

import contextlib
import errno
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from auxtap.extraction.datasets.reading import Sample
from auxtap.extraction.run.job import ExtractionJob
from auxtap.extraction.run.request_runner import fate_line
from auxtap.extraction.servers.endpoint import Endpoint, Lease
from auxtap.extraction.spool.directory import ForeignFileError
from auxtap.extraction.spool.parts import ReadyPart
from auxtap.extraction.store.ledger import STORED, LedgerLine
from auxtap.extraction.store.store import PartSource, Store, WrittenPart
from auxtap.tap.protocol import READY, PartName

# What a person must mend: trying again is of no use.
_LASTING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EFBIG}
)
_LONGEST_DELAY_S = 30.0


@dataclass(frozen=True)
class ReceivedSample:
    """The parts of one sample, whole in the spool."""

    endpoint: Endpoint
    lease: Lease
    parts: tuple[ReadyPart, ...]


class StoringThreads:
    """Threads that store deliveries."""

    def __init__(
        self,
        store: Store,
        job: ExtractionJob,
        settle: Callable[[ReceivedSample, Callable[[], LedgerLine]], None],
        halted: threading.Event,
        say: Callable[[str], None],
    ) -> None:
        """Begin with nothing to do; `settle` is called with each sample and with what stores it."""
        self._store = store
        self._job = job
        self._settle = settle
        self._halted = halted
        self._say = say
        self._deliveries: queue.SimpleQueue[ReceivedSample | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"drain-{number}", daemon=True)
            for number in range(job.drain_threads)
        ]

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def put(self, received: ReceivedSample) -> None:
        """Have a sample stored."""
        self._deliveries.put(received)

    def stop(self) -> None:
        """Let the threads end once nothing is left."""
        for _ in self._threads:
            self._deliveries.put(None)

    def _work(self) -> None:
        while (received := self._deliveries.get()) is not None:
            self._settle(received, lambda received=received: self._store_it(received))  # type: ignore[misc]

    def _store_it(self, received: ReceivedSample) -> LedgerLine:
        """Store a sample, trying again what may pass.

        Raises:
            PartRejectedError: its bytes are not to be believed.
            OSError: the store cannot take it.
        """
        delay_s = self._job.backoff_s
        for number in range(1, self._job.store_tries + 1):
            try:
                return self._write(received)
            except OSError as error:
                if error.errno in _LASTING or number == self._job.store_tries or self._halted.is_set():
                    raise
                self._say(f"the store took no data ({error}); trying again in {delay_s:g} s")
                if self._halted.wait(delay_s):
                    raise
                delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
        raise AssertionError("there is always a last try")

    def _write(self, received: ReceivedSample) -> LedgerLine:
        queued = received.lease.queued
        written: list[WrittenPart] = []
        try:
            for part in received.parts:
                written.append(self._store.write_part(queued.sample, _source(part, queued.sample)))
            parts = tuple(item.part for item in written)
            line = fate_line(queued.sample, STORED, "", queued.tries + 1, parts, queued.seconds)
            self._store.commit(written, line)
        finally:
            for item in written:
                item.temporary.unlink(missing_ok=True)
        return line


def _source(part: ReadyPart, sample: Sample) -> PartSource:
    return PartSource(part.name.pp, part.name.dp, part.layout, part.digest, part.blocks(sample.ids))


def received_files(endpoint: Endpoint, lease: Lease) -> Iterator[tuple[str, BinaryIO]]:
    """Open whatever came for a request."""
    for replica in endpoint.replicas:
        for writer in replica.writers.topology.writers:
            name = str(PartName(lease.rid, writer.pp_rank, writer.dp_rank, READY))
            with contextlib.suppress(FileNotFoundError, ForeignFileError):
                yield name, os.fdopen(replica.spool.open_file(name), "rb")
