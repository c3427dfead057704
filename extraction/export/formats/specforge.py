"""SpecForge's offline EAGLE-3 features (0.2.0: `runtime/data_plane/offline_reader.py`, `algorithms/eagle3/data.py`)."""

from pathlib import PurePosixPath
from typing import BinaryIO

from auxtap.extraction.export.checkpoint import CheckpointFiles, in_groups
from auxtap.extraction.export.contract import POST_NORM_ONLY, Needs, Shown
from auxtap.extraction.export.torch_file import integers, save, tensor_of
from auxtap.extraction.export.whole_sample import SamplePlace, WholeSample

GROUP = 2000


class SpecForge(CheckpointFiles):
    """`input_ids` and `loss_mask` [tokens]; `aux_hidden_state` [1, tokens, 3 x hidden]; `hidden_state` [1, tokens,
    hidden] after the norm. Nothing is shifted; the loader takes the last position out of the mask itself."""

    name = "specforge"
    shown = Shown(
        "`rows_{g}-{g+2000}/data_{index}.ckpt`",
        "`input_ids` [L], `loss_mask` [L], `aux_hidden_state` [1, L, 3H], `hidden_state` [1, L, H]",
    )
    needs = Needs(3, POST_NORM_ONLY)
    mapping_file = PurePosixPath("vocab_mapping", "vocab_mapping.pt")

    def file_of(self, place: SamplePlace) -> PurePosixPath:
        """Return `rows_{g}-{g+2000}/data_{index}.ckpt`."""
        return in_groups(place, GROUP)

    def write(self, file: BinaryIO, sample: WholeSample) -> None:
        """Write the four tensors."""
        n, width = sample.n_tokens, sample.hidden_size
        values = {
            "input_ids": integers(sample.input_ids, (n,)),
            "loss_mask": integers(sample.mask, (n,)),
            "hidden_state": tensor_of(sample.postnorm, sample.dtype, (1, n, width)),
            "aux_hidden_state": tensor_of(sample.side_by_side(), sample.dtype, (1, n, len(sample.layers) * width)),
        }
        save(values, file)


FORMAT = SpecForge()
