"""NVIDIA ModelOpt's dumped files (0.47.0: `torch/speculative/eagle/utils.py`, `OfflineSupervisedDataset`)."""

from pathlib import PurePosixPath
from typing import Any, BinaryIO

from auxtap.extraction.export.checkpoint import CheckpointFiles
from auxtap.extraction.export.contract import EITHER, Needs, Shown
from auxtap.extraction.export.torch_file import integers, save, tensor_of
from auxtap.extraction.export.whole_sample import SamplePlace, WholeSample
from auxtap.tap.protocol import FINAL


class ModelOpt(CheckpointFiles):
    """`input_ids` and `loss_mask` [tokens]; `hidden_states` [tokens, hidden]; `aux_hidden_states` [tokens, 3 x hidden].

    The final state is after the norm where there is one, else before it; `hidden_states_prenorm` says which. The
    collator shifts the labels. Ids of samples are no file names: `conversation_id` has them.
    """

    name = "modelopt"
    shown = Shown(
        "`{index}.pt`",
        "`input_ids` [L], `loss_mask` [L], `hidden_states` [L, H], `aux_hidden_states` [L, 3H], `conversation_id`, "
        "`hidden_states_prenorm`",
    )
    needs = Needs(3, EITHER)
    mapping_file = None

    def file_of(self, place: SamplePlace) -> PurePosixPath:
        """Return `{index}.pt`."""
        return PurePosixPath(f"{place.index:08d}.pt")

    def write(self, file: BinaryIO, sample: WholeSample) -> None:
        """Write the four tensors, the id and the flag."""
        n, width = sample.n_tokens, sample.hidden_size
        after = FINAL in sample.states
        final = sample.postnorm if after else sample.prenorm
        values: dict[str, Any] = {
            "input_ids": integers(sample.input_ids, (n,)),
            "hidden_states": tensor_of(final, sample.dtype, (n, width)),
            "aux_hidden_states": tensor_of(sample.side_by_side(), sample.dtype, (n, len(sample.layers) * width)),
            "loss_mask": integers(sample.mask, (n,)),
            "conversation_id": sample.place.sample_id,
            "hidden_states_prenorm": not after,
        }
        save(values, file)


FORMAT = ModelOpt()
