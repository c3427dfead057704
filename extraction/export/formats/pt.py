"""The store's own tensors under their own names, one torch file a sample, for code of one's own."""

from pathlib import PurePosixPath
from typing import BinaryIO

from auxtap.extraction.export.checkpoint import CheckpointFiles
from auxtap.extraction.export.contract import ANY_NUMBER, EITHER, Needs, Shown
from auxtap.extraction.export.torch_file import integers, save, tensor_of
from auxtap.extraction.export.whole_sample import SamplePlace, WholeSample


class JoinedTorch(CheckpointFiles):
    """`torch.save` of `input_ids`, `hidden.<i>`, the final states and `loss_mask` uint8."""

    name = "pt"
    shown = Shown("`samples/{index}.pt`", "the store's own, the parts of all pipeline stages in one file")
    needs = Needs(ANY_NUMBER, EITHER, all_finals=True)
    mapping_file = PurePosixPath("vocab_mapping.pt")
    same_as = "pt"

    def file_of(self, place: SamplePlace) -> PurePosixPath:
        """Return `samples/{index}.pt`."""
        return PurePosixPath("samples", f"{place.index:08d}.pt")

    def write(self, file: BinaryIO, sample: WholeSample) -> None:
        """Write the tensors in the store's order."""
        shape = (sample.n_tokens, sample.hidden_size)
        values = {"input_ids": integers(sample.input_ids, (sample.n_tokens,))}
        values |= {name: tensor_of(data, sample.dtype, shape) for name, data in sample.states.items()}
        values["loss_mask"] = tensor_of(sample.loss_mask, "U8", (sample.n_tokens,))
        save(values, file)


FORMAT = JoinedTorch()
