"""What ranks that write no states do while a canary runs: digest the same rows, so that ranks can be compared.

Every rank of an attention-TP group must hold the same states; one that was captured before its all-reduce differs
from rank to rank. A witness stands where the writer stands and takes the same jobs, but keeps no rows. It works in
the forward's thread: a canary is a few prompts, and the requests of a mass run are none of its business.
"""

import logging
from dataclasses import dataclass, field
from typing import Any

from . import protocol
from .spool import SpoolDirectory
from .writer import Begin, Block, End, Failure

logger = logging.getLogger("sglang.srt.auxtap")

_TORCH_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class NoBudget:
    """The bound of a witness, which holds nothing: every block is let through."""

    limit = 1 << 40

    def acquire(self, n_bytes: int, timeout_s: float) -> bool:
        """Say that the bytes are there."""
        return True


@dataclass
class _Seen:
    """The rows of one request so far."""

    layout: protocol.PartLayout
    n_rows: int = 0
    digests: dict[str, Any] = field(default_factory=dict)
    squares: dict[str, float] = field(default_factory=dict)


class Witness:
    """Takes the jobs of a writer on attention-TP rank `tp`, and publishes a record for each whole prompt."""

    def __init__(self, spool: SpoolDirectory, nonce: str, tp: int) -> None:
        self.budget = NoBudget()
        self._spool = spool
        self._nonce = nonce
        self._tp = tp
        self._algorithm = protocol.best_digest()
        self._seen: dict[protocol.PartName, _Seen] = {}

    def submit(self, job: Begin | Block | End | Failure) -> None:
        """Digest what a writer would write."""
        if isinstance(job, Begin):
            # From row 0 on it begins anew: a prompt that was retracted comes again.
            if job.first_row == 0:
                self._seen[job.name] = _Seen(job.layout)
        elif isinstance(job, Failure):
            self._seen.pop(job.name, None)
        elif job.name in self._seen:
            seen = self._seen[job.name]
            if isinstance(job, Block):
                self._digest(seen, job)
            else:
                seen.n_rows += job.n_rows
                if seen.n_rows >= seen.layout.n_tokens:
                    self._publish(job.name, self._seen.pop(job.name))

    def count(self, **increments: float) -> None:
        """Count nothing: the writer of this group counts."""

    def note_error(self, error: str) -> None:
        """Say it in the server's log; a record that is missing fails the canary."""
        logger.error("auxtap: witness %d: %s", self._tp, error)

    def _digest(self, seen: _Seen, job: Block) -> None:
        data = job.read()
        digest = seen.digests.setdefault(job.slot, protocol.new_digest(self._algorithm))
        digest.update(data)
        dtype = seen.layout.slot(job.slot).dtype
        if dtype in _TORCH_DTYPES:
            seen.squares[job.slot] = seen.squares.get(job.slot, 0.0) + _sum_of_squares(data, dtype)

    def _publish(self, name: protocol.PartName, seen: _Seen) -> None:
        record = protocol.WitnessRecord(
            rid=str(name.rid),
            nonce=self._nonce,
            tp=self._tp,
            n_rows=seen.n_rows,
            digests={slot: f"{self._algorithm}:{digest.hexdigest()}" for slot, digest in seen.digests.items()},
            squares=seen.squares,
        )
        self._spool.publish_json(protocol.witness_name(name, self._tp), record.to_json())


def _sum_of_squares(data: Any, dtype: str) -> float:
    import torch

    values = torch.frombuffer(bytearray(data), dtype=getattr(torch, _TORCH_DTYPES[dtype]))
    return float(values.double().square().sum())
