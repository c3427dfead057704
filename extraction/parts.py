"""Wait for a sample's parts and read them, believing nothing that was not compared."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from auxtap.core.errors import ExtractionError
from auxtap.extraction.finite import is_finite
from auxtap.extraction.spool import ForeignFileError, SpoolDirectory
from auxtap.extraction.topology import Topology, read_topology, stage_layout
from auxtap.extraction.untrusted import printable
from auxtap.tap import protocol
from auxtap.tap.protocol import FailureRecord, Header, PartName, ProtocolError, RankDescriptor, RequestId

BLOCK_BYTES = 4 << 20
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


class PartRejectedError(Exception):
    """A sample's parts are not to be had or not to be believed; `final` when another try would give the same."""

    def __init__(self, reason: str, *, received: tuple[str, ...] = (), final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.received = received
        self.final = final


class WritersWatch:
    """The spool's writers as they are now: a server that was started again has new nonces."""

    def __init__(self, spool: SpoolDirectory) -> None:
        """Read the writers; raises what `read_topology` raises."""
        self._spool = spool
        self._lock = threading.Lock()
        self.topology = read_topology(spool)

    def refresh(self) -> Topology:
        """Read the writers again.

        Raises:
            ExtractionError: they are gone, or give other states than before.
        """
        with self._lock:
            topology = read_topology(self._spool)
            if _meaning(topology) != _meaning(self.topology):
                raise ExtractionError(
                    f"the server behind spool {self._spool.path} was started again with other settings",
                    hint="start it as it was before and run the same command again",
                )
            self.topology = topology
            return topology


def _meaning(topology: Topology) -> list[dict[str, object]]:
    ignored = ("host", "pid", "nonce")
    return [{k: v for k, v in w.to_json().items() if k not in ignored} for w in topology.writers]


@dataclass(frozen=True)
class ReadyPart:
    """A part with a final name whose header was checked; its bytes are yet to be read."""

    name: PartName
    header: Header
    digest: str

    def blocks(self, spool: SpoolDirectory, ids: bytes) -> Iterator[memoryview]:
        """Read all tensor bytes in order; after the last block they are known to be good.

        A block is valid until the next one is asked for.

        Raises:
            PartRejectedError: other prompt, NaN or infinity, other digest, or the file changed.
        """
        name = str(self.name)
        algorithm, expected = protocol.split_digest(self.digest)
        digest = protocol.new_digest(algorithm)
        buffer = memoryview(bytearray(min(BLOCK_BYTES, max(self.header.data_bytes, 1))))
        with os.fdopen(_open(spool, name), "rb", buffering=0) as file:
            file.seek(self.header.n_bytes)
            for slot in self.header.slots:
                done = 0
                while done < slot.n_bytes:
                    block = buffer[: min(len(buffer), slot.n_bytes - done)]
                    if not _fill(file.readinto, block):
                        raise PartRejectedError(f"{name} ends within {slot.name}", received=(name,))
                    digest.update(block)
                    if slot.name == protocol.INPUT_IDS:
                        if block != ids[done : done + len(block)]:
                            raise PartRejectedError(f"{name} holds states of another prompt", received=(name,))
                    elif not is_finite(block, slot.dtype):
                        reason = f"{slot.name} holds NaN or infinity"
                        raise PartRejectedError(reason, received=(name,), final=True)
                    yield block
                    done += len(block)
        if digest.hexdigest() != expected:
            raise PartRejectedError(f"{name} does not have the digest that the tap gave it", received=(name,))


def _fill(readinto: Callable[[memoryview], int | None], block: memoryview) -> bool:
    while block:
        n_read = readinto(block)
        if not n_read:
            return False
        block = block[n_read:]
    return True


def _open(spool: SpoolDirectory, name: str) -> int:
    try:
        return spool.open_file(name)
    except (ForeignFileError, FileNotFoundError) as error:
        raise PartRejectedError(f"a foreign file in the spool: {error}") from None


@dataclass(frozen=True)
class PartsWaiter:
    """Finds the parts of one request after another."""

    spool: SpoolDirectory
    writers: WritersWatch
    stop: threading.Event
    clock: Callable[[], float] = time.monotonic

    def wait(self, rid: RequestId, n_tokens: int, timeout_s: float) -> tuple[ReadyPart, ...]:
        """Return one checked part for every stage, all of one DP group.

        Raises:
            PartRejectedError: a stage announced a failure, a part is not what it must be, or time is up.
            ExtractionError: the spool is gone, or its writers changed.
        """
        deadline = self.clock() + timeout_s
        pause = _SHORTEST_PAUSE_S
        while True:
            for dp in range(self.writers.topology.head.dp_size):
                parts = self._look(rid, dp, n_tokens)
                if parts is not None:
                    return parts
            if self.clock() >= deadline or self.stop.is_set():
                break
            self.stop.wait(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)
        if not self.spool.is_in_place():
            raise ExtractionError(
                f"spool {self.spool.path} was removed", hint="restart the server, then run the same command again"
            )
        raise PartRejectedError(self._describe_missing(rid, timeout_s))

    def discard(self, rid: RequestId) -> None:
        """Remove what is ready or failed of a request."""
        for writer in self.writers.topology.writers:
            for suffix in (protocol.READY, protocol.FAILED):
                self.spool.remove(str(PartName(rid, writer.pp_rank, writer.dp_rank, suffix)))

    def _look(self, rid: RequestId, dp: int, n_tokens: int) -> tuple[ReadyPart, ...] | None:
        stages = self.writers.topology.stages
        for stage in stages:
            self._raise_failure(PartName(rid, stage.pp_rank, dp, protocol.FAILED))
        names = [PartName(rid, stage.pp_rank, dp, protocol.READY) for stage in stages]
        if not all(self.spool.holds(str(name)) for name in names):
            return None
        parts = [self._check(name, n_tokens) for name in names]
        return None if None in parts else tuple(part for part in parts if part is not None)

    def _writer(self, name: PartName, nonce: str) -> RankDescriptor | None:
        """Return the living writer that has `nonce`, None when that one is of an earlier start."""
        writer = self.writers.topology.writer(name.pp, name.dp)
        if writer.nonce != nonce:
            writer = self.writers.refresh().writer(name.pp, name.dp)
        return writer if writer.nonce == nonce else None

    def _raise_failure(self, name: PartName) -> None:
        try:
            record = FailureRecord.from_json(json.loads(self.spool.read_record(str(name))))
        except FileNotFoundError:
            return
        except ForeignFileError as error:
            raise PartRejectedError(f"a foreign file in the spool: {error}") from None
        except (ProtocolError, ValueError, RecursionError):
            raise PartRejectedError(f"{name} is unreadable") from None
        if record.rid != str(name.rid) or self._writer(name, record.nonce) is None:
            self.spool.remove(str(name))
            return
        raise PartRejectedError(f"the tap gave it up on stage {name.pp}: {printable(record.reason)}")

    def _check(self, name: PartName, n_tokens: int) -> ReadyPart | None:
        """Check a part's size and header; None when it is of an earlier start and was thrown away."""
        text = str(name)
        with os.fdopen(_open(self.spool, text), "rb") as file:
            try:
                prefix = file.read(8)
                header = protocol.decode_header(prefix + file.read(protocol.header_length(prefix) - 8))
                protocol.split_digest(header.metadata.get("digest", ""))
            except ProtocolError as error:
                raise PartRejectedError(f"{text}: {error}", received=(text,)) from None
            size = os.fstat(file.fileno()).st_size
        writer = self._writer(name, header.metadata.get("nonce", ""))
        if writer is None:
            self.spool.remove(text)
            return None
        expected = protocol.PartMetadata(
            str(name.rid), writer.nonce, name.pp, name.dp, header.metadata["digest"]
        ).to_header()
        wrong = None
        if header.metadata != expected:
            wrong = "its header is of another part"
        elif header.slots != stage_layout(writer, n_tokens).slots:
            wrong = _describe_layout(header, writer, n_tokens)
        elif size != header.n_bytes + header.data_bytes:
            wrong = f"has {size} bytes, not {header.n_bytes + header.data_bytes}"
        if wrong is not None:
            raise PartRejectedError(f"{text} {wrong}", received=(text,))
        return ReadyPart(name, header, header.metadata["digest"])

    def _describe_missing(self, rid: RequestId, timeout_s: float) -> str:
        """Say what of the request is there and what is not."""
        topology = self.writers.topology
        for suffix, state in ((protocol.READY, "ready"), (protocol.WRITING, "begun")):
            seen = {
                (stage.pp_rank, dp)
                for stage in topology.stages
                for dp in range(topology.head.dp_size)
                if self.spool.holds(str(PartName(rid, stage.pp_rank, dp, suffix)))
            }
            if seen:
                n_stages = len(topology.stages)
                return f"after {timeout_s:g} s only {len(seen)} of {n_stages} parts are {state}"
        return f"after {timeout_s:g} s no part of it is in the spool"


def _describe_layout(header: Header, writer: RankDescriptor, n_tokens: int) -> str:
    expected = {slot.name: slot for slot in stage_layout(writer, n_tokens).slots}
    found = {slot.name: slot for slot in header.slots}
    if found.keys() != expected.keys():
        return f"holds {', '.join(found) or 'nothing'}, not {', '.join(expected)}"
    for name, slot in expected.items():
        other = found[name]
        if (other.dtype, other.shape) != (slot.dtype, slot.shape):
            return f"has {name} as {other.dtype} {list(other.shape)}, not {slot.dtype} {list(slot.shape)}"
    return "has its tensors in another order"
