"""Wait for a sample's parts and read them, believing nothing that was not compared."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from auxtap.core.errors import ExtractionError
from auxtap.core.files import BLOCK_BYTES
from auxtap.extraction.spool.directory import ForeignFileError, SpoolUnion
from auxtap.extraction.spool.finite import is_finite
from auxtap.extraction.spool.part_bytes import ExpectedDigest, read_part_header
from auxtap.extraction.spool.topology import Topology, WritersMissingError, read_topology, stage_layout
from auxtap.extraction.spool.untrusted import printable
from auxtap.tap import protocol
from auxtap.tap.protocol import (
    FailureRecord,
    Header,
    PartLayout,
    PartName,
    ProtocolError,
    RankDescriptor,
    RequestId,
)

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

    def __init__(self, spool: SpoolUnion) -> None:
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
class Replica:
    """One complete set of writers and the spool they write into."""

    spool: SpoolUnion
    writers: WritersWatch


@dataclass(frozen=True)
class ReadyPart:
    """A part with a final name whose header was checked; its bytes are yet to be read."""

    name: PartName
    header: Header
    digest: str
    replica: Replica

    @property
    def layout(self) -> PartLayout:
        """What the part holds, by its writer's word."""
        n_tokens = self.header.slots[0].shape[0]
        return stage_layout(self.replica.writers.topology.writer(self.name.pp, self.name.dp), n_tokens)

    def blocks(self, ids: bytes) -> Iterator[memoryview]:
        """Read all tensor bytes in order; after the last block they are known to be good.

        A block is valid until the next one is asked for.

        Raises:
            PartRejectedError: other prompt, NaN or infinity, other digest, or the file changed.
        """
        name = str(self.name)
        digest = ExpectedDigest(self.digest)
        buffer = memoryview(bytearray(min(BLOCK_BYTES, max(self.header.data_bytes, 1))))
        with os.fdopen(_open(self.replica.spool, name), "rb", buffering=0) as file:
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
        if not digest.agrees():
            raise PartRejectedError(f"{name} does not have the digest that the tap gave it", received=(name,))


def _fill(readinto: Callable[[memoryview], int | None], block: memoryview) -> bool:
    while block:
        n_read = readinto(block)
        if not n_read:
            return False
        block = block[n_read:]
    return True


def _open(spool: SpoolUnion, name: str) -> int:
    try:
        return spool.open_file(name)
    except (ForeignFileError, FileNotFoundError) as error:
        raise PartRejectedError(f"a foreign file in the spool: {error}") from None


@dataclass(frozen=True)
class PartsWaiter:
    """Finds the parts of one request after another; behind a router they may come into any replica's spool."""

    replicas: tuple[Replica, ...]
    stop: threading.Event
    clock: Callable[[], float] = time.monotonic

    def wait(
        self, rid: RequestId, n_tokens: int, timeout_s: float, given_up: Callable[[], bool] = lambda: False
    ) -> tuple[ReadyPart, ...]:
        """Return one checked part for every stage, all of one DP group; `given_up` ends the wait early.

        Raises:
            PartRejectedError: a stage announced a failure, a part is not what it must be, or time is up.
            ExtractionError: the spool is gone, or its writers changed.
        """
        deadline = self.clock() + timeout_s
        pause = _SHORTEST_PAUSE_S
        while True:
            for replica in self.replicas:
                for dp in range(replica.writers.topology.head.dp_size):
                    parts = _Look(replica).find(rid, dp, n_tokens)
                    if parts is not None:
                        return parts
            if self.clock() >= deadline or self.stop.is_set() or given_up():
                break
            self.stop.wait(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)
        for replica in self.replicas:
            if not replica.spool.is_in_place():
                raise removed_spool(replica)
        raise PartRejectedError(describe_missing(self.replicas, rid, timeout_s))

    def discard(self, rid: RequestId) -> None:
        """Remove what is ready or failed of a request."""
        for replica in self.replicas:
            for writer in replica.writers.topology.writers:
                for suffix in (protocol.READY, protocol.FAILED):
                    replica.spool.remove(str(PartName(rid, writer.pp_rank, writer.dp_rank, suffix)))

    def has_ended(self, rid: RequestId) -> bool:
        """Tell whether the tap is through with a request that was given up: every part ready, or one failed."""
        for replica in self.replicas:
            for dp in range(replica.writers.topology.head.dp_size):
                stages = [stage.pp_rank for stage in replica.writers.topology.stages]
                failed = [replica.spool.holds(str(PartName(rid, pp, dp, protocol.FAILED))) for pp in stages]
                ready = [replica.spool.holds(str(PartName(rid, pp, dp, protocol.READY))) for pp in stages]
                if any(failed) or all(ready):
                    return True
        return False


@dataclass(frozen=True)
class _Look:
    """A look for parts in one replica."""

    replica: Replica

    @property
    def spool(self) -> SpoolUnion:
        return self.replica.spool

    @property
    def writers(self) -> WritersWatch:
        return self.replica.writers

    def find(self, rid: RequestId, dp: int, n_tokens: int) -> tuple[ReadyPart, ...] | None:
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
            with contextlib.suppress(WritersMissingError):
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
                header, _ = read_part_header(file)
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
        return ReadyPart(name, header, header.metadata["digest"], self.replica)


def removed_spool(replica: Replica) -> ExtractionError:
    """Return the error of a spool that is gone."""
    return ExtractionError(
        f"spool {replica.spool.path} was removed", hint="restart the server, then run the same command again"
    )


def describe_missing(replicas: Sequence[Replica], rid: RequestId, timeout_s: float) -> str:
    """Say what of a request is there and what is not."""
    for suffix, state in ((protocol.READY, "ready"), (protocol.WRITING, "begun")):
        for replica in replicas:
            topology = replica.writers.topology
            seen = {
                (stage.pp_rank, dp)
                for stage in topology.stages
                for dp in range(topology.head.dp_size)
                if replica.spool.holds(str(PartName(rid, stage.pp_rank, dp, suffix)))
            }
            if seen:
                return f"after {timeout_s:g} s only {len(seen)} of {len(topology.stages)} parts are {state}"
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
