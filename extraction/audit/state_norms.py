"""Norms of states, row by row from a file's blocks, gathered so that memory does not grow with their number."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from auxtap.extraction.audit.bfloat16 import widen

# A bin is a sixteenth of an octave wide: a quantile is off by 2.2 % at most.
_BINS_PER_OCTAVE = 16
_LOWEST_OCTAVE, _OCTAVES = -64, 192
# Values looked at together: few enough to stay in the processor's cache.
_PIECE = 1 << 17
# Below this norm squares may be too small for float32.
_LEAST_EXACT = 1e-12


@dataclass(frozen=True)
class NormSpread:
    """How the norms of many tokens lie; None when there was none. `not_finite` rows hold NaN or infinity."""

    n_rows: int
    mean: float | None
    low: float | None
    median: float | None
    high: float | None
    largest: float | None
    not_finite: int


def row_norms(data: bytes | memoryview, dtype: str, width: int) -> NDArray[np.float64]:
    """Return the Euclidean norm of each row of little-endian [rows, width]; `dtype` is safetensors' name."""
    raw = np.frombuffer(data, dtype={"BF16": "<u2", "F16": "<f2", "F32": "<f4"}[dtype]).reshape(-1, width)
    norms = np.empty(len(raw))
    step = max(1, _PIECE // width)
    for begin in range(0, len(raw), step):
        rows = raw[begin : begin + step]
        norms[begin : begin + step] = _norms_of(widen(rows) if dtype == "BF16" else rows.astype(np.float32, copy=False))
    return norms


def _norms_of(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):
        norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", rows, rows).astype(np.float64))
        # Squares that float32 cannot hold, or holds as nothing.
        for place in np.flatnonzero(~((norms > _LEAST_EXACT) & np.isfinite(norms))):
            norms[place] = np.sqrt(np.square(rows[place].astype(np.float64)).sum())
    return norms


class NormGatherer:
    """Gathers norms one batch after the other."""

    def __init__(self) -> None:
        """Begin with none."""
        self._bins = np.zeros(_BINS_PER_OCTAVE * _OCTAVES, dtype=np.int64)
        self._sum = 0.0
        self._largest = -math.inf
        self._not_finite = 0

    def add(self, norms: NDArray[np.float64]) -> None:
        """Take norms in."""
        good = norms[np.isfinite(norms)]
        self._not_finite += len(norms) - len(good)
        if not len(good):
            return
        self._sum += float(good.sum())
        self._largest = max(self._largest, float(good.max()))
        with np.errstate(divide="ignore"):
            places = (np.log2(good) - _LOWEST_OCTAVE) * _BINS_PER_OCTAVE
        places = np.clip(places, 0, len(self._bins) - 1).astype(np.int64)
        self._bins += np.bincount(places, minlength=len(self._bins))

    def spread(self) -> NormSpread:
        """Return how they lie, the quantiles 1 %, 50 % and 99 %."""
        n_rows = int(self._bins.sum())
        if not n_rows:
            return NormSpread(0, None, None, None, None, None, self._not_finite)
        low, median, high = (self._quantile(share, n_rows) for share in (0.01, 0.5, 0.99))
        return NormSpread(n_rows, self._sum / n_rows, low, median, high, self._largest, self._not_finite)

    def _quantile(self, share: float, n_rows: int) -> float:
        place = int(np.searchsorted(np.cumsum(self._bins), max(1, math.ceil(share * n_rows))))
        value = float(2.0 ** (_LOWEST_OCTAVE + (place + 0.5) / _BINS_PER_OCTAVE))
        return min(value, self._largest)


class RowReader:
    """Cuts the blocks of one tensor into whole rows."""

    def __init__(self, dtype: str, width: int, row_bytes: int) -> None:
        """Begin before the first block."""
        self._dtype, self._width, self._row_bytes = dtype, width, row_bytes
        self._rest = b""

    def norms(self, block: memoryview) -> NDArray[np.float64]:
        """Return the norms of the rows that end in this block."""
        data: bytes | memoryview = block
        if self._rest:
            data = self._rest + bytes(block)
        whole = len(data) - len(data) % self._row_bytes
        self._rest = bytes(data[whole:])
        return row_norms(data[:whole], self._dtype, self._width)
