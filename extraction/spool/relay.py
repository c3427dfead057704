"""Carry the parts of one host's spool to where the extractor can see them."""

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.core.files import fsync_directory, held_lock, read_blocks
from auxtap.extraction.spool.directory import ForeignFileError, SpoolDirectory
from auxtap.extraction.spool.part_bytes import ExpectedDigest, read_part_header
from auxtap.tap import protocol
from auxtap.tap.protocol import ProtocolError

_LONGEST_DELAY_S = 30.0


@dataclass
class RelayCount:
    """What a relay has carried so far."""

    parts: int = 0
    records: int = 0
    n_bytes: int = 0
    retries: int = 0
    refused: int = 0


class PartDamagedError(Exception):
    """A part does not have the digest that its tap gave it."""


class Relay:
    """Moves parts and failure records from `spool` to `target` and keeps the writers' descriptors there up to date.

    A part is digested on the way and published under its final name only when it is what the tap wrote; it is removed
    from the spool after that.
    """

    def __init__(
        self, spool: SpoolDirectory, target: SpoolDirectory, say: Callable[[str], None], stop: threading.Event
    ) -> None:
        """Begin with nothing carried."""
        self._spool = spool
        self._target = target
        self._say = say
        self._stop = stop
        self._published: dict[str, bytes] = {}
        self.count = RelayCount()

    def run(self, *, pause_s: float = 0.02, until_idle_s: float | None = None, clock: Callable[[], float]) -> None:
        """Carry until asked to stop, or until nothing has come for `until_idle_s`.

        Raises:
            ExtractionError: the spool was removed.
        """
        delay_s, last_at = 1.0, clock()
        while True:
            try:
                if self.carry_once():
                    last_at = clock()
                delay_s = 1.0
            except OSError as error:
                self.count.retries += 1
                self._say(f"the target takes no data ({error}); trying again in {delay_s:g} s")
                self._stop.wait(delay_s)
                delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
            if not self._spool.is_in_place():
                raise ExtractionError(
                    f"spool {self._spool.path} was removed", hint="start the server again: it makes its spool"
                )
            if self._stop.is_set() or (until_idle_s is not None and clock() - last_at >= until_idle_s):
                return
            self._stop.wait(pause_s)

    def carry_once(self) -> int:
        """Carry what is there now; return how many parts and records that were.

        Raises:
            OSError: the target takes no data.
        """
        n_carried = 0
        for name in sorted(self._spool.names()):
            part = protocol.parse_part_name(name)
            if part is not None and part.suffix == protocol.READY:
                n_carried += self._carry_part(name)
            elif part is not None and part.suffix == protocol.FAILED:
                n_carried += self._carry_record(name, keep=False)
            elif protocol.is_descriptor_name(name):
                n_carried += self._carry_record(protocol.stats_name(name), keep=True)
                n_carried += self._carry_record(name, keep=True)
        return n_carried

    def _carry_record(self, name: str, *, keep: bool) -> int:
        try:
            data = self._spool.read_record(name)
        except (FileNotFoundError, ForeignFileError):
            return 0
        if self._published.get(name) == data:
            return 0
        temporary = f".{name}.relay.tmp"
        _write(self._target, temporary, data)
        self._target.rename(temporary, name)
        if keep:
            self._published[name] = data
            return 0  # counters change all the time; they are no work
        self._spool.remove(name)
        self.count.records += 1
        return 1

    def _carry_part(self, name: str) -> int:
        temporary = f".{name}.relay.tmp"
        try:
            n_bytes = self._copy(name, temporary)
        except FileNotFoundError:
            return 0
        except (PartDamagedError, ForeignFileError, ProtocolError) as error:
            self._target.remove(temporary)
            self._spool.remove(name)
            self.count.refused += 1
            self._say(f"{name} is not carried: {error}")
            return 1
        self._target.rename(temporary, name)
        fsync_directory(self._target.path)
        self._spool.remove(name)
        self.count.parts += 1
        self.count.n_bytes += n_bytes
        return 1

    def _copy(self, name: str, temporary: str) -> int:
        with os.fdopen(self._spool.open_file(name), "rb", buffering=0) as source:
            header, head = read_part_header(source)
            digest = ExpectedDigest(header.metadata.get("digest", ""))
            self._target.remove(temporary)
            n_bytes = len(head)
            with os.fdopen(self._target.create(temporary), "wb", buffering=0) as target:
                _write_all(target.fileno(), head)
                for block in read_blocks(source):
                    digest.update(block)
                    _write_all(target.fileno(), block)
                    n_bytes += len(block)
                os.fsync(target.fileno())
        if not digest.agrees() or n_bytes != header.n_bytes + header.data_bytes:
            raise PartDamagedError("it does not have the digest that the tap gave it")
        return n_bytes


def _write(directory: SpoolDirectory, name: str, data: bytes) -> None:
    directory.remove(name)
    with os.fdopen(directory.create(name), "wb", buffering=0) as file:
        _write_all(file.fileno(), data)
        os.fsync(file.fileno())


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def relay_spool(
    spool: Path,
    target: Path,
    *,
    say: Callable[[str], None],
    stop: threading.Event,
    until_idle_s: float | None,
    clock: Callable[[], float],
) -> RelayCount:
    """Carry a spool's parts to `target` until asked to stop.

    Raises:
        UsageError: they are the same place.
        ExtractionError: one of them is not fit, or another drain is at work.
    """
    if target.exists() and spool.exists() and spool.samefile(target):
        raise UsageError("the spool and the target are the same folder", hint="name the shared folder as the target")
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(SpoolDirectory(spool))
        destination = stack.enter_context(SpoolDirectory(target))
        try:
            stack.enter_context(held_lock(spool / ".drain.lock", wait=False))
        except BlockingIOError:
            raise ExtractionError(
                f"another drain is at work in spool {spool}", hint="stop the other one first"
            ) from None
        relay = Relay(source, destination, say, stop)
        relay.run(until_idle_s=until_idle_s, clock=clock)
        return relay.count
