"""Single rows of a checkpoint's output head, read without loading the model."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from auxtap.extraction.canary.stored_states import Rows, numbers

_HEADS, _EMBEDDINGS = "lm_head.weight", "embed_tokens.weight"
_MAX_HEADER_BYTES = 256 << 20
_WIDTHS = {"F32": 4, "BF16": 2, "F16": 2}
# Settings under which logits are more than the head times the final state.
_SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling", "logits_mup_width_multiplier", "mup_width_scale")


class NoHeadError(Exception):
    """A checkpoint's output head cannot be used; says why."""


@dataclass(frozen=True)
class OutputHead:
    """Where the head's matrix [vocabulary, hidden] lies in a safetensors file."""

    path: Path
    name: str
    offset: int
    dtype: str
    shape: tuple[int, int]

    def rows(self, ids: Sequence[int]) -> Rows:
        """Return the rows of these tokens, [ids, hidden] float32."""
        row_bytes = self.shape[1] * _WIDTHS[self.dtype]
        found = []
        with self.path.open("rb") as file:
            for token in ids:
                file.seek(self.offset + token * row_bytes)
                found.append(numbers(file.read(row_bytes), self.dtype).astype(np.float32))
        return np.stack(found)


def find_head(model: Path) -> OutputHead:
    """Find the head of a checkpoint: `lm_head`, or the embedding where they are tied.

    Raises:
        NoHeadError: there is none that can be used.
    """
    try:
        config = json.loads((model / "config.json").read_bytes())
    except (OSError, ValueError):
        raise NoHeadError(f"{model} is no local checkpoint with a config.json") from None
    inner = config.get("text_config")
    settings: dict[str, Any] = {**config, **(inner if isinstance(inner, dict) else {})}
    scaled = [key for key in _SCALES if settings.get(key) not in (None, 1, 1.0)]
    if scaled:
        raise NoHeadError(f"{scaled[0]} is {settings[scaled[0]]}: logits are more than head times state")
    files = sorted(model.glob("*.safetensors"))
    wanted = [_HEADS] if not settings.get("tie_word_embeddings") else [_HEADS, _EMBEDDINGS]
    for ending in wanted:
        for path in _holders(model, files, ending):
            head = _find_tensor(path, ending)
            if head is not None:
                return head
    raise NoHeadError(f"{model} holds no {' or '.join(wanted)} in a safetensors file")


def _holders(model: Path, files: Sequence[Path], ending: str) -> list[Path]:
    """Return the files to look into: the one that the index names, or all."""
    try:
        index = json.loads((model / "model.safetensors.index.json").read_bytes())["weight_map"]
    except (OSError, ValueError, KeyError):
        return list(files)
    return [model / file for name, file in index.items() if _ends(name, ending)]


def _find_tensor(path: Path, ending: str) -> OutputHead | None:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= _MAX_HEADER_BYTES:
                raise NoHeadError(f"{path} is no safetensors file")
            header = json.loads(file.read(length))
    except (OSError, ValueError) as error:
        raise NoHeadError(f"{path} cannot be read: {error}") from None
    for name, entry in header.items():
        if not _ends(name, ending):
            continue
        if entry["dtype"] not in _WIDTHS or len(entry["shape"]) != 2:
            raise NoHeadError(f"{name} is of dtype {entry['dtype']}, which is not read here")
        return OutputHead(path, name, 8 + length + entry["data_offsets"][0], entry["dtype"], tuple(entry["shape"]))
    return None


def _ends(name: str, ending: str) -> bool:
    return name == ending or name.endswith(f".{ending}")
