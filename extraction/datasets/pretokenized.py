"""Read the fields of a record that holds token ids, and its id."""

import sys
import unicodedata
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from auxtap.extraction.datasets.record import Record

MAX_ID_CHARS = 200
_MAX_TOKEN_ID = 2**31 - 1
# Cc: control characters and newlines; Cs: lone surrogates, no text at all; Zl, Zp: Unicode's own line ends.
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
# What loaders put where a label is not to be trained on (PyTorch's `ignore_index`).
_IGNORED_LABEL = -100


def read_id(record: Record) -> str:
    """Return a record's id; one that has none is called after its place.

    Raises:
        ValueError: the id is none that a ledger can hold.
    """
    value = record.value.get("id")
    if value is None:
        return f"{record.place.file.name}/{record.place.unit}-{record.place.number}"
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise ValueError("id is neither a string nor a whole number")
    if not value.strip():
        raise ValueError("id is empty")
    if len(value) > MAX_ID_CHARS:
        raise ValueError(f"id has {len(value)} characters, more than {MAX_ID_CHARS}")
    if any(unicodedata.category(character) in _REFUSED_CATEGORIES for character in value):
        raise ValueError(f"id {value!r} holds control characters")
    if value.startswith("/") or "\\" in value or ".." in value.split("/"):
        raise ValueError(f"id {value!r} looks like a path")
    return value


def read_ids(value: object) -> bytes:
    """Return token ids as little-endian int64.

    Raises:
        ValueError: they are no list of ids; says which is none.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ValueError("has neither turns nor a list of input_ids")
    if not value:
        raise ValueError("input_ids is empty")
    for position, token in enumerate(value):
        if type(token) is not int:
            raise ValueError(f"input_ids[{position}] is not an integer")
        if not 0 <= token <= _MAX_TOKEN_ID:
            raise ValueError(f"input_ids[{position}] is {token}, no token id")
    ids = array("q", value)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def widest_id(ids: bytes) -> int:
    """Return the largest of little-endian int64 ids."""
    return max(unpack_ids(ids))


def unpack_ids(ids: bytes) -> "array[int]":
    """Return little-endian int64 ids as numbers."""
    values = array("q")
    values.frombytes(ids)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def read_mask(record: Mapping[str, Any], ids: bytes) -> bytes:
    """Return the mask of a record, one byte (0 or 1) a token; every token counts where it has none.

    Masks are `loss_mask`, or `assistant_masks` as transformers calls them, or `labels` that repeat the ids or are -100.

    Raises:
        ValueError: it does not fit the ids.
    """
    n_tokens = len(ids) // 8
    given = [key for key in ("loss_mask", "assistant_masks", "labels") if record.get(key) is not None]
    if not given:
        return b"\x01" * n_tokens
    if len(given) > 1:
        raise ValueError(f"has both {given[0]} and {given[1]}")
    key, value = given[0], record[given[0]]
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ValueError(f"{key} is not a list")
    if len(value) != n_tokens:
        raise ValueError(f"{key} has {len(value)} entries for {n_tokens} tokens")
    if key == "labels":
        return _mask_of_labels(value, ids)
    for position, entry in enumerate(value):
        if type(entry) not in (int, bool) or entry not in (0, 1):
            raise ValueError(f"{key}[{position}] is neither 0 nor 1")
    return bytes(map(int, value))


def _mask_of_labels(labels: Sequence[Any], ids: bytes) -> bytes:
    for position, (label, token) in enumerate(zip(labels, unpack_ids(ids), strict=True)):
        if label not in (_IGNORED_LABEL, token):
            raise ValueError(
                f"labels[{position}] is {label!r}, neither -100 nor input_ids[{position}] ({token}); are they shifted?"
            )
    return bytes(label != _IGNORED_LABEL for label in labels)
