"""The states of a canary's stores as numbers, whatever their dtype."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from auxtap.extraction.audit.bfloat16 import widen
from auxtap.extraction.store.formats.safetensors_part import SafetensorsPart
from auxtap.extraction.store.reader import StoreReader

Rows = NDArray[np.float32]
NOT_STATES = ("input_ids", "loss_mask")
_BFLOAT16 = "BF16"
_DTYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "U8": np.uint8}


@dataclass(frozen=True)
class PromptStates:
    """One prompt's states: `rows` by name, each [tokens, hidden] float32; `data` the bytes of every tensor."""

    index: int
    ids: tuple[int, ...]
    rows: dict[str, Rows]
    data: dict[str, bytes]


def read_states(store: Path) -> tuple[PromptStates, ...]:
    """Read every stored sample.

    Raises:
        IntegrityError: the store is not whole.
        OSError: a file cannot be read.
    """
    prompts = []
    for sample in StoreReader(store):
        tensors: dict[str, NDArray[np.generic]] = {}
        data: dict[str, bytes] = {}
        for file in sample.files:
            part = SafetensorsPart().open(file)
            bytes_of = {slot.name: bytearray() for slot in part.content.slots}
            for slot, block in part.blocks():
                bytes_of[slot.name] += block
            for slot in part.content.slots:
                data[slot.name] = bytes(bytes_of[slot.name])
                tensors[slot.name] = numbers(data[slot.name], slot.dtype).reshape(slot.shape)
        rows = {name: tensors[name].astype(np.float32) for name in sorted(tensors, key=depth) if name not in NOT_STATES}
        prompts.append(PromptStates(sample.index, tuple(tensors["input_ids"].tolist()), rows, data))
    return tuple(prompts)


def depth(name: str) -> int:
    """Order states by layer, the final ones last."""
    number = name.rpartition(".")[2]
    return int(number) if number.isdigit() else (1 << 30) + len(name)


def numbers(data: bytes, dtype: str) -> NDArray[np.generic]:
    """Return little-endian values as an array; bfloat16, which numpy lacks, as float32.

    Raises:
        KeyError: `dtype` (safetensors' name) is none of those that models have here.
    """
    if dtype == _BFLOAT16:
        return widen(np.frombuffer(data, dtype="<u2"))
    return np.frombuffer(data, dtype=_DTYPES[dtype])
