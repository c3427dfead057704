"""The store's own tensors under their own names, one safetensors file a sample, for code of one's own."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from auxtap.extraction.export.contract import ANY_NUMBER, EITHER, Needs, Shown, TokenRow
from auxtap.extraction.export.whole_sample import SamplePlace, WholeSample
from auxtap.tap.protocol import TensorSlot, encode_header


class JoinedSafetensors:
    """`input_ids`, `hidden.<i>`, the final states and `loss_mask` uint8; needs no torch."""

    name = "safetensors"
    shown = Shown("`samples/{index}.safetensors`", "the store's own, the parts of all pipeline stages in one file")
    needs = Needs(ANY_NUMBER, EITHER, all_finals=True)
    mapping_file = PurePosixPath("vocab_mapping.pt")
    same_as = "safetensors"

    def check_available(self) -> None:
        """Need nothing."""

    def file_of(self, place: SamplePlace) -> PurePosixPath:
        """Return `samples/{index}.safetensors`."""
        return PurePosixPath("samples", f"{place.index:08d}.safetensors")

    def write(self, file: BinaryIO, sample: WholeSample) -> None:
        """Write header and tensors in the store's order."""
        metadata = {"id": sample.place.sample_id, "index": str(sample.place.index)}
        file.write(encode_header(_slots(sample), metadata))
        file.write(sample.input_ids.tobytes())
        for data in sample.states.values():
            file.write(data.tobytes())
        file.write(sample.loss_mask.tobytes())

    def extra_files(self) -> tuple[PurePosixPath, ...]:
        """Return none."""
        return ()

    def finish(self, folder: Path, rows: Iterable[TokenRow]) -> None:
        """Write nothing."""


def _slots(sample: WholeSample) -> tuple[TensorSlot, ...]:
    """Lay out the tensors of a whole sample as the store does: ids, layers ascending, final states, mask."""
    slots = [TensorSlot("input_ids", "I64", (sample.n_tokens,), 0)]
    for name in sample.states:
        offset = slots[-1].offset + slots[-1].n_bytes
        slots.append(TensorSlot(name, sample.dtype, (sample.n_tokens, sample.hidden_size), offset))
    offset = slots[-1].offset + slots[-1].n_bytes
    return (*slots, TensorSlot("loss_mask", "U8", (sample.n_tokens,), offset))


FORMAT = JoinedSafetensors()
