"""Carry one sample from prompt to store, as often as it takes."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import BinaryIO

from auxtap.core.errors import ServerError
from auxtap.extraction.client import Answered, Declined, ServerClient, Unanswered
from auxtap.extraction.job import ExtractionJob, StopRequest
from auxtap.extraction.ledger import FAILED, STORED, LedgerLine, LedgerPart
from auxtap.extraction.parts import PartRejectedError, PartsWaiter, ReadyPart
from auxtap.extraction.samples import Sample
from auxtap.extraction.spool import ForeignFileError, SpoolDirectory
from auxtap.extraction.store import PartSource, Store, WrittenPart
from auxtap.extraction.topology import stage_layout
from auxtap.tap.protocol import READY, PartName, RequestId

ATTEMPTS_A_SESSION = 100


@dataclass(frozen=True)
class _Retry:
    reason: str
    delay_s: float = 0.0
    unreachable: bool = False


@dataclass(frozen=True)
class _Failed:
    reason: str


def utc_now() -> str:
    """Return the time as the ledger writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def fate_line(
    sample: Sample, fate: str, reason: str, attempts: int, parts: tuple[LedgerPart, ...], now: str
) -> LedgerLine:
    """Return the ledger line for a sample's fate."""
    return LedgerLine(
        sample.index, sample.sample_id, fate, reason, sample.n_tokens, attempts, sample.ids_digest(), parts, now
    )


@dataclass(frozen=True)
class Courier:
    """What all samples of a run need on their way; used by several threads at once."""

    job: ExtractionJob
    spool: SpoolDirectory
    waiter: PartsWaiter
    client: ServerClient
    store: Store
    stop: StopRequest
    halted: threading.Event
    note_answer: Callable[[], None]
    clock: Callable[[], str] = utc_now

    def carry(self, sample: Sample) -> LedgerLine | None:
        """Bring a sample to its fate and return that; None when the run ended before there was one.

        Raises:
            ServerError: the server is gone.
            ExtractionError: the spool is gone, or its writers changed.
            OSError: the store cannot be written.
        """
        last = _Retry("")
        for number in range(1, self.job.max_tries + 1):
            if number > 1 and self._ended(self.job.backoff_s * 2 ** (number - 2), last):
                return None
            rid = RequestId(
                self.store.manifest.run, sample.index, self.store.manifest.sessions * ATTEMPTS_A_SESSION + number
            )
            try:
                outcome = self._try(rid, sample, number)
            finally:
                self.waiter.discard(rid)
            if isinstance(outcome, LedgerLine) or outcome is None:
                return outcome
            if isinstance(outcome, _Failed):
                return self._fail(sample, outcome.reason, number)
            last = outcome
        if self.stop.now.is_set() or self.halted.is_set():
            return None
        if last.unreachable and not self.client.is_alive():
            raise ServerError(
                f"server {self.client.url} is gone or stuck: {last.reason}",
                hint="look at its log, start it again, and run the same command again: it continues",
            )
        return self._fail(sample, last.reason, self.job.max_tries)

    def _ended(self, delay_s: float, last: _Retry) -> bool:
        """Wait before another try; tell whether there is to be none."""
        self.stop.now.wait(max(delay_s, last.delay_s))
        return self.stop.now.is_set() or self.halted.is_set()

    def _fail(self, sample: Sample, reason: str, attempts: int) -> LedgerLine:
        line = fate_line(sample, FAILED, reason, attempts, (), self.clock())
        self.store.record(line)
        return line

    def _try(self, rid: RequestId, sample: Sample, number: int) -> LedgerLine | _Retry | _Failed | None:
        answer = self.client.generate(str(rid), sample.token_ids(), self.job.max_new_tokens)
        if self.stop.now.is_set() or self.halted.is_set():
            return None
        if not (isinstance(answer, Unanswered) and answer.unreachable):
            self.note_answer()
        match answer:
            case Declined(reason):
                return _Failed(reason)
            case Unanswered():
                return _Retry(answer.reason, answer.retry_after_s, answer.unreachable)
            case Answered():
                pass
        try:
            parts = self.waiter.wait(rid, sample.n_tokens, self.job.parts_timeout_s)
            return self._store(sample, parts, number)
        except PartRejectedError as rejected:
            if self.stop.now.is_set():
                return None
            if rejected.received and (rejected.final or number == self.job.max_tries):
                label = f"{sample.index:08d}.attempt{rid.attempt}"
                self.store.quarantine(label, rejected.reason, self._received(rid))
            return _Failed(rejected.reason) if rejected.final else _Retry(rejected.reason)

    def _store(self, sample: Sample, parts: tuple[ReadyPart, ...], number: int) -> LedgerLine:
        written: list[WrittenPart] = []
        try:
            for part in parts:
                writer = self.waiter.writers.topology.writer(part.name.pp, part.name.dp)
                source = PartSource(
                    part.name.pp,
                    part.name.dp,
                    stage_layout(writer, sample.n_tokens),
                    part.digest,
                    part.blocks(self.spool, sample.ids),
                )
                written.append(self.store.write_part(sample, source))
            line = fate_line(sample, STORED, "", number, tuple(item.part for item in written), self.clock())
            self.store.commit(written, line)
        finally:
            for item in written:
                item.temporary.unlink(missing_ok=True)
        return line

    def _received(self, rid: RequestId) -> Iterator[tuple[str, BinaryIO]]:
        """Open whatever came for a request."""
        for writer in self.waiter.writers.topology.writers:
            name = str(PartName(rid, writer.pp_rank, writer.dp_rank, READY))
            with contextlib.suppress(FileNotFoundError, ForeignFileError):
                yield name, os.fdopen(self.spool.open_file(name), "rb")
