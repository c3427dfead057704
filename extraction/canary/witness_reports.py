"""What the ranks that write no states saw of a canary's prompts."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from auxtap.extraction.servers.client import ServerInfo
from auxtap.extraction.spool.directory import ForeignFileError, SpoolDirectory
from auxtap.extraction.spool.topology import Topology
from auxtap.tap import protocol
from auxtap.tap.protocol import ProtocolError, WitnessRecord


@dataclass(frozen=True)
class WitnessReport:
    """What one rank saw of one prompt: `digests` of whole tensors, `squares` the sums of the squares of states."""

    index: int
    tp: int
    n_rows: int
    digests: dict[str, str]
    squares: dict[str, float]


def new_canary_run() -> str:
    """Return the run of a canary, of which every rank bears witness."""
    return protocol.CANARY_PREFIX + secrets.token_hex(4)[len(protocol.CANARY_PREFIX) :]


def take_witness_reports(spools: Sequence[Path], run: str) -> tuple[WitnessReport, ...]:
    """Read and remove what the ranks left of a run.

    Raises:
        ExtractionError: a spool cannot be opened.
    """
    found = []
    for path in spools:
        with SpoolDirectory(path) as spool:
            for name in sorted(spool.names()):
                if not protocol.is_witness_name(name):
                    continue
                witness_report = _read(spool, name, run)
                if witness_report is not None:
                    found.append(witness_report)
                    spool.remove(name)
    return tuple(found)


def _read(spool: SpoolDirectory, name: str, run: str) -> WitnessReport | None:
    try:
        record = WitnessRecord.from_json(json.loads(spool.read_record(name)))
    except (FileNotFoundError, ForeignFileError, ProtocolError, ValueError, RecursionError):
        return None
    rid = protocol.parse_rid(record.rid)
    if rid is None or rid.run != run:
        return None
    return WitnessReport(rid.index, record.tp, record.n_rows, record.digests, record.squares)


def witnesses_a_group(topology: Topology, info: ServerInfo) -> int:
    """Return how many ranks beside the writer hold the rows of a prompt, on each stage."""
    head = topology.head
    ranks = head.tp_size
    if info.arguments.get("enable_dp_attention"):
        ranks //= max(1, head.dp_size)
    return max(0, ranks - 1)


def digest_bytes(algorithm: str, data: bytes) -> str:
    """Return a digest as witnesses and parts have it.

    Raises:
        ProtocolError: the algorithm is unknown.
    """
    digest = protocol.new_digest(algorithm)
    digest.update(data)
    return f"{algorithm}:{digest.hexdigest()}"
