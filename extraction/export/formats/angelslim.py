"""AngelSlim's offline EAGLE-3 features."""

from pathlib import PurePosixPath
from typing import BinaryIO

from auxtap.extraction.export.checkpoint import CheckpointFiles, in_groups
from auxtap.extraction.export.contract import POST_NORM_ONLY, Needs, Shown
from auxtap.extraction.export.torch_file import integers, save, tensor_of
from auxtap.extraction.export.whole_sample import SamplePlace, WholeSample

GROUP = 5000


class AngelSlim(CheckpointFiles):
    """`input_ids` and `loss_mask` [1, tokens]; `hidden_states` [1, tokens, 3 x hidden]; `target_hiddens` [1, tokens,
    hidden] after the norm."""

    name = "angelslim"
    shown = Shown(
        "`rows_{g}-{g+5000}/data_{index}.ckpt`",
        "`input_ids` [1, L], `loss_mask` [1, L], `hidden_states` [1, L, 3H], `target_hiddens` [1, L, H]",
    )
    needs = Needs(3, POST_NORM_ONLY)
    mapping_file = PurePosixPath("vocab_mapping.pt")

    def file_of(self, place: SamplePlace) -> PurePosixPath:
        """Return `rows_{g}-{g+5000}/data_{index}.ckpt`."""
        return in_groups(place, GROUP)

    def write(self, file: BinaryIO, sample: WholeSample) -> None:
        """Write the four tensors."""
        n, width = sample.n_tokens, sample.hidden_size
        values = {
            "input_ids": integers(sample.input_ids, (1, n)),
            "loss_mask": integers(sample.mask, (1, n)),
            "hidden_states": tensor_of(sample.side_by_side(), sample.dtype, (1, n, len(sample.layers) * width)),
            "target_hiddens": tensor_of(sample.postnorm, sample.dtype, (1, n, width)),
        }
        save(values, file)


FORMAT = AngelSlim()
