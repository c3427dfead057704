"""speculators' training data (0.9.0: `train/data.py` ArrowDataset, hs-connectors 0.9.0 FileTransfer).

The folder is a dataset of the package datasets as `save_to_disk` leaves it, with `hidden_states/` and `token_freq.pt`
in it. It is written here with pyarrow alone.
"""

import hashlib
import importlib.util
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np

from auxtap.core.errors import UsageError
from auxtap.extraction.export.contract import ANY_NUMBER, PRE_NORM_ONLY, Needs, Shown, TokenRow
from auxtap.extraction.export.torch_file import require_torch, save
from auxtap.extraction.export.whole_sample import SamplePlace, WholeSample
from auxtap.tap.protocol import TensorSlot, encode_header

ARROW, FREQUENCIES = "data-00000-of-00001.arrow", "token_freq.pt"
INFO, STATE = "dataset_info.json", "state.json"
_ROWS_A_BATCH = 1000
_LIST = {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"}
_FEATURES = {"input_ids": _LIST, "loss_mask": _LIST, "seq_len": {"dtype": "int64", "_type": "Value"}}


class Speculators:
    """`token_ids` int64 [tokens] and `hidden_states` [tokens, layers + 1, hidden]: the layers ascending, then the final
    state before the norm, to which the trainer applies the verifier's norm itself."""

    name = "speculators"
    shown = Shown(
        "a `datasets` folder, `hidden_states/hs_{row}.safetensors`, `token_freq.pt`",
        "`token_ids` [L], `hidden_states` [L, K+1, H], the final state in the last slot",
    )
    needs = Needs(ANY_NUMBER, PRE_NORM_ONLY)
    mapping_file = None
    same_as = ""

    def check_available(self) -> None:
        """Raise UsageError when pyarrow or torch is not installed."""
        if importlib.util.find_spec("pyarrow") is None:
            raise UsageError(
                "format speculators needs pyarrow, which is not installed beside auxtap",
                hint="pip install 'auxtap[data,pt]'",
            )
        require_torch(self.name)

    def file_of(self, place: SamplePlace) -> PurePosixPath:
        """Return `hidden_states/hs_{row}.safetensors`."""
        return PurePosixPath("hidden_states", f"hs_{place.row}.safetensors")

    def write(self, file: BinaryIO, sample: WholeSample) -> None:
        """Write both tensors."""
        n = sample.n_tokens
        ids = TensorSlot("token_ids", "I64", (n,), 0)
        shape = (n, len(sample.layers) + 1, sample.hidden_size)
        states = TensorSlot("hidden_states", sample.dtype, shape, ids.n_bytes)
        file.write(encode_header([ids, states], {"format": "pt"}))
        file.write(sample.input_ids.tobytes())
        file.write(sample.side_by_side([sample.prenorm]).tobytes())

    def extra_files(self) -> tuple[PurePosixPath, ...]:
        """Return the dataset's files and the token counts; a loader begins with the last."""
        return tuple(PurePosixPath(name) for name in (ARROW, FREQUENCIES, INFO, STATE))

    def finish(self, folder: Path, rows: Iterable[TokenRow]) -> None:
        """Write the dataset and how often each trained token stands in it."""
        counts: Counter[int] = Counter()
        fingerprint = _write_table(folder / ARROW, rows, counts)
        with (folder / FREQUENCIES).open("wb") as file:
            save(counts, file)
        (folder / INFO).write_text(json.dumps({"citation": "", "description": "", "features": _FEATURES}, indent=2))
        state = {
            "_data_files": [{"filename": ARROW}],
            "_fingerprint": fingerprint,
            "_format_columns": list(_FEATURES),
            "_format_kwargs": {},
            # The loader compares tensors of torch with what the dataset gives.
            "_format_type": "torch",
            "_output_all_columns": False,
            "_split": None,
        }
        (folder / STATE).write_text(json.dumps(state, indent=2))


def _write_table(path: Path, rows: Iterable[TokenRow], counts: "Counter[int]") -> str:
    """Write the Arrow stream and count trained tokens; return a fingerprint of the rows."""
    import pyarrow as pa

    names = {"huggingface": json.dumps({"info": {"features": _FEATURES}})}
    lists = pa.list_(pa.int64())
    schema = pa.schema([("input_ids", lists), ("loss_mask", lists), ("seq_len", pa.int64())], metadata=names)
    digest = hashlib.sha256()
    with path.open("wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for batch in _batches(rows):
            columns: list[Any] = [
                pa.array([row.input_ids for row in batch], type=lists),
                pa.array([row.loss_mask.astype(np.int64) for row in batch], type=lists),
                pa.array([row.place.n_tokens for row in batch], type=pa.int64()),
            ]
            stream.write_batch(pa.record_batch(columns, schema=schema))
            for row in batch:
                digest.update(row.input_ids.tobytes())
                ids, times = np.unique(row.input_ids[row.loss_mask.astype(bool)], return_counts=True)
                counts.update(dict(zip(ids.tolist(), times.tolist(), strict=True)))
    return digest.hexdigest()[:16]


def _batches(rows: Iterable[TokenRow]) -> Iterator[tuple[TokenRow, ...]]:
    iterator = iter(rows)
    while batch := tuple(itertools.islice(iterator, _ROWS_A_BATCH)):
        yield batch


FORMAT = Speculators()
