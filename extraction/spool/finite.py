"""Find NaN and infinity by their exponent bits, without converting a value."""

import numpy as np
from numpy.typing import NDArray

# Exponent bits, all set in NaN and infinity only (IEEE 754; BF16 is the upper half of F32).
_EXPONENTS: dict[str, np.unsignedinteger] = {
    "BF16": np.uint16(0x7F80),
    "F16": np.uint16(0x7C00),
    "F32": np.uint32(0x7F800000),
}
# Values looked at together: few enough to stay in the processor's cache.
_PIECE = 1 << 18


def is_finite(data: memoryview, dtype: str) -> bool:
    """Tell whether all values of little-endian `data` are finite; `dtype` is safetensors' name.

    Raises:
        KeyError: `dtype` is no floating dtype that the tap writes.
    """
    exponent = _EXPONENTS[dtype]
    values: NDArray[np.unsignedinteger] = np.frombuffer(data, dtype=exponent.dtype.newbyteorder("<"))
    scratch = np.empty(min(len(values), _PIECE), dtype=values.dtype)
    for begin in range(0, len(values), _PIECE):
        piece = values[begin : begin + _PIECE]
        if np.bitwise_and(piece, exponent, out=scratch[: len(piece)]).max() == exponent:
            return False
    return True
