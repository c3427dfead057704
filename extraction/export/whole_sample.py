"""A whole stored sample in memory: the parts of all pipeline stages joined, bytes as the tap gave them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from auxtap.tap.protocol import FINAL, FINAL_PRENORM, HIDDEN_PREFIX

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class SamplePlace:
    """Where a sample stands: `index` in the dataset, `row` among the samples of this export."""

    index: int
    row: int
    sample_id: str
    n_tokens: int


@dataclass(frozen=True)
class WholeSample:
    """The tensors of one sample.

    `input_ids` int64 [tokens], `loss_mask` uint8 [tokens]; `states` by name, each [tokens, hidden x bytes of dtype],
    as bytes, because numpy has no bfloat16. `dtype` is safetensors' name; `layers` are those that are wanted.
    """

    place: SamplePlace
    dtype: str
    hidden_size: int
    layers: tuple[int, ...]
    input_ids: NDArray[np.int64]
    loss_mask: Bytes
    states: Mapping[str, Bytes] = field(hash=False)

    @property
    def n_tokens(self) -> int:
        """How many rows each tensor has."""
        return self.place.n_tokens

    @property
    def mask(self) -> NDArray[np.int64]:
        """The loss mask as trainers keep it: int64 [tokens]."""
        return self.loss_mask.astype(np.int64)

    @property
    def prenorm(self) -> Bytes:
        """The final state before the norm, [tokens, bytes]."""
        return self.states[FINAL_PRENORM]

    @property
    def postnorm(self) -> Bytes:
        """The final state after the norm, [tokens, bytes]."""
        return self.states[FINAL]

    def side_by_side(self, more: Sequence[Bytes] = ()) -> Bytes:
        """Return the layers' states of each token one after the other, ascending, `more` behind them: [tokens, bytes].

        Seen as [tokens, n x hidden] or as [tokens, n, hidden]: it is the same bytes.
        """
        return np.concatenate([*(self.states[f"{HIDDEN_PREFIX}{layer}"] for layer in self.layers), *more], axis=1)
