"""Who writes into the spool, and therefore which parts a sample must have."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from auxtap.core.errors import ExtractionError
from auxtap.extraction.spool.directory import AnySpool, ForeignFileError, SpoolDirectory, SpoolUnion
from auxtap.tap import protocol
from auxtap.tap.protocol import PartLayout, PartMetadata, ProtocolError, RankDescriptor, RequestId

# What every writer of one server must say alike.
_COMMON = (
    "pp_size", "dp_size", "all_layers", "final", "num_layers", "hidden_size", "vocab_size", "context_length", "dtype",
    "model_class", "model_path", "release", "patch_digest", "source_digest",
    "way", "setters",
)  # fmt: skip
# What the states follow from; the servers of one run may differ in the rest.
_OF_THE_STATES = tuple(name for name in _COMMON if name not in ("dp_size", "context_length", "setters"))
_PAGE_BYTES = 4096
_RESTART = "restart the server with an empty spool; auxtap serve makes one"


class WritersMissingError(ExtractionError):
    """Not every writer has announced itself yet."""


@dataclass(frozen=True)
class Topology:
    """The writers of one server, by DP group and stage; there is one for every pair."""

    writers: tuple[RankDescriptor, ...]

    @property
    def head(self) -> RankDescriptor:
        """Any writer, for what all of them say alike."""
        return self.writers[0]

    @property
    def stages(self) -> tuple[RankDescriptor, ...]:
        """One writer a stage that leaves parts, in the order of the stages."""
        return tuple(w for w in self.writers if w.dp_rank == 0 and w.writes_parts)

    def writer(self, pp: int, dp: int) -> RankDescriptor:
        """Return the writer of a stage in a DP group.

        Raises:
            KeyError: there is none.
        """
        for writer in self.writers:
            if (writer.pp_rank, writer.dp_rank) == (pp, dp):
                return writer
        raise KeyError((pp, dp))

    def differences(self, other: "Topology") -> tuple[str, ...]:
        """Say in what another server's states differ from this one's."""
        pairs = [(name, getattr(self.head, name), getattr(other.head, name)) for name in _OF_THE_STATES]
        mine, theirs = ([(w.pp_rank, w.layers, w.has_final) for w in t.stages] for t in (self, other))
        pairs.append(("stages", mine, theirs))
        return tuple(f"{name.replace('_', ' ')} {one!r} and {two!r}" for name, one, two in pairs if one != two)

    def spool_bytes(self, n_tokens: int) -> int:
        """Return what a sample takes in the spool, in whole pages: the parts of all stages."""
        rid = RequestId("0" * 8, 10**9 - 1, 10**9 - 1)
        total = 0
        for stage in self.stages:
            layout = stage_layout(stage, n_tokens)
            digest = protocol.blank_digest("sha256")
            metadata = PartMetadata(str(rid), stage.nonce, stage.pp_rank, self.head.dp_size, digest)
            n_bytes = layout.data_bytes + len(protocol.encode_header(layout.slots, metadata.to_header()))
            total += -(-n_bytes // _PAGE_BYTES) * _PAGE_BYTES
        return total


def stage_layout(writer: RankDescriptor, n_tokens: int) -> PartLayout:
    """Return what a part of this writer's stage holds for a prompt of `n_tokens`."""
    return protocol.part_layout(
        n_tokens=n_tokens,
        layers=writer.layers,
        has_final=writer.has_final,
        hidden_size=writer.hidden_size,
        dtype=writer.dtype,
        final=writer.final,
    )


def read_topology(spool: AnySpool) -> Topology:
    """Read the descriptors of the spool's writers.

    Raises:
        ExtractionError: there are none, some are missing, or they do not fit together.
    """
    names = sorted(name for name in spool.names() if protocol.is_descriptor_name(name))
    if not names:
        raise WritersMissingError(
            f"no writer has announced itself in spool {spool.path}",
            hint="the server must run with this spool: auxtap serve --worktree DIR --model-path M --spool "
            f"{spool.path}",
        )
    writers: dict[tuple[int, int], RankDescriptor] = {}
    for name in names:
        writer = _read_descriptor(spool, name)
        if (writer.dp_rank, writer.pp_rank) in writers:
            raise ExtractionError(
                f"spool {spool.path}: two writers say they are stage {writer.pp_rank} of group {writer.dp_rank}",
                hint=_RESTART,
            )
        writers[writer.dp_rank, writer.pp_rank] = writer
    _check_agreement(spool, writers.values())
    head = next(iter(writers.values()))
    for key in ((dp, pp) for dp in range(head.dp_size) for pp in range(head.pp_size)):
        if key not in writers:
            raise WritersMissingError(
                f"spool {spool.path}: stage {key[1]} of group {key[0]} has not announced itself "
                f"(pp size {head.pp_size}, dp size {head.dp_size})",
                hint="wait until the server is ready, or " + _RESTART,
            )
    topology = Topology(tuple(writers[key] for key in sorted(writers)))
    _check_coverage(spool, topology)
    return topology


@contextlib.contextmanager
def open_replicas(paths: Sequence[Path]) -> Iterator[tuple[SpoolUnion, ...]]:
    """Open one server's spools for the length of the block.

    Behind a router each spool is a whole server's, and each is given by itself; else all of them together are one
    server's, whose stages run on several hosts.

    Raises:
        ExtractionError: a spool cannot be used, or writers of one do not fit together.
    """
    with contextlib.ExitStack() as stack:
        spools = [stack.enter_context(SpoolDirectory(path)) for path in paths]
        each = tuple(SpoolUnion([spool]) for spool in spools)
        yield each if len(each) == 1 or all(map(_is_complete, each)) else (SpoolUnion(spools),)


def _is_complete(spool: SpoolUnion) -> bool:
    """Tell whether the writers of this spool alone make a whole server."""
    try:
        read_topology(spool)
    except WritersMissingError:
        return False
    return True


def _read_descriptor(spool: AnySpool, name: str) -> RankDescriptor:
    try:
        return RankDescriptor.from_json(json.loads(spool.read_record(name)))
    except FileNotFoundError:
        raise WritersMissingError(f"spool {spool.path}: {name} was there and is gone", hint=_RESTART) from None
    except (ForeignFileError, ProtocolError, ValueError, RecursionError) as error:
        raise ExtractionError(f"spool {spool.path}: {name} is unusable: {error}", hint=_RESTART) from None


def _check_agreement(spool: AnySpool, writers: Iterable[RankDescriptor]) -> None:
    head, *others = writers
    for field in _COMMON:
        for other in others:
            if getattr(head, field) != getattr(other, field):
                raise ExtractionError(
                    f"spool {spool.path}: its writers disagree on {field}: "
                    f"{getattr(head, field)!r} and {getattr(other, field)!r}",
                    hint=_RESTART,
                )
    in_range = all(0 <= w.pp_rank < w.pp_size and 0 <= w.dp_rank < w.dp_size for w in (head, *others))
    if not in_range or head.hidden_size < 1 or head.dtype not in ("F32", "BF16", "F16"):
        raise ExtractionError(f"spool {spool.path}: a writer's descriptor makes no sense", hint=_RESTART)


def _check_coverage(spool: AnySpool, topology: Topology) -> None:
    head = topology.head
    for dp in range(head.dp_size):
        stages = [topology.writer(pp, dp) for pp in range(head.pp_size)]
        layers = [layer for stage in stages for layer in stage.layers]
        finals = [stage.pp_rank for stage in stages if stage.has_final]
        alike = [stage.layers for stage in stages] == [topology.writer(w.pp_rank, 0).layers for w in stages]
        if layers != sorted(head.all_layers) or finals != [head.pp_size - 1] or not alike:
            raise ExtractionError(
                f"spool {spool.path}: the stages of group {dp} hold layers {layers}, not {list(head.all_layers)} "
                "and the final state",
                hint=_RESTART,
            )
