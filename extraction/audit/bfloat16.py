"""bfloat16, which numpy lacks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def widen(halves: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.float32]:
    """Return bfloat16 values, held as 16-bit words of any shape, as float32: a bfloat16 is its upper half."""
    words = np.zeros((*halves.shape, 2), dtype="<u2")
    words[..., 1] = halves
    return words.view("<f4")[..., 0]
