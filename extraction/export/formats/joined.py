"""The store's own tensors under their own names, one file a sample, for code of one's own."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from auxtap.extraction.export.formats.checkpoint import CheckpointFiles
from auxtap.extraction.export.formats.sample import SamplePlace, WholeSample
from auxtap.extraction.export.formats.torch_file import integers, save, tensor_of
from auxtap.extraction.export.formats.trainer import ANY_NUMBER, EITHER, Needs, TokenRow, joined_slots
from auxtap.tap.protocol import encode_header


class JoinedTorch(CheckpointFiles):
    """`torch.save` of `input_ids`, `hidden.<i>`, the final states and `loss_mask` uint8."""

    name = "pt"
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


class JoinedSafetensors:
    """The same tensors in safetensors; needs no torch."""

    name = "safetensors"
    needs = Needs(ANY_NUMBER, EITHER, all_finals=True)
    mapping_file = PurePosixPath("vocab_mapping.pt")
    numbers_rows = False
    same_as = "safetensors"

    def check_available(self) -> None:
        """Need nothing."""

    def file_of(self, place: SamplePlace) -> PurePosixPath:
        """Return `samples/{index}.safetensors`."""
        return PurePosixPath("samples", f"{place.index:08d}.safetensors")

    def write(self, file: BinaryIO, sample: WholeSample) -> None:
        """Write header and tensors in the store's order."""
        metadata = {"id": sample.place.sample_id, "index": str(sample.place.index)}
        file.write(encode_header(joined_slots(sample), metadata))
        file.write(sample.input_ids.tobytes())
        for data in sample.states.values():
            file.write(data.tobytes())
        file.write(sample.loss_mask.tobytes())

    def extra_files(self) -> tuple[PurePosixPath, ...]:
        """Return none."""
        return ()

    def finish(self, folder: Path, rows: Iterable[TokenRow]) -> None:
        """Write nothing."""
