"""The `ge_data` of EAGLE and EAGLE-2: the final state alone, for drafters that see no other layer."""

from pathlib import PurePosixPath
from typing import BinaryIO

from auxtap.extraction.export.checkpoint import CheckpointFiles
from auxtap.extraction.export.contract import POST_NORM_ONLY, Needs, Shown
from auxtap.extraction.export.torch_file import integers, save, tensor_of
from auxtap.extraction.export.whole_sample import SamplePlace, WholeSample


class GeData(CheckpointFiles):
    """`input_ids` and `loss_mask` [tokens]; `hidden_state` [tokens, hidden] after the norm.

    The loader shifts, and takes every file that it finds: nothing else may lie there.
    """

    name = "ge_data"
    shown = Shown(
        "`data_{index}.ckpt`",
        "`input_ids` [L], `loss_mask` [L], `hidden_state` [L, H]",
    )
    needs = Needs(0, POST_NORM_ONLY)
    mapping_file = None

    def file_of(self, place: SamplePlace) -> PurePosixPath:
        """Return `data_{index}.ckpt`."""
        return PurePosixPath(f"data_{place.index}.ckpt")

    def write(self, file: BinaryIO, sample: WholeSample) -> None:
        """Write the three tensors."""
        n = sample.n_tokens
        values = {
            "input_ids": integers(sample.input_ids, (n,)),
            "loss_mask": integers(sample.mask, (n,)),
            "hidden_state": tensor_of(sample.postnorm, sample.dtype, (n, sample.hidden_size)),
        }
        save(values, file)


FORMAT = GeData()
