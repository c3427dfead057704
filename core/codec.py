"""Read and write dataclasses as JSON, by the types of their fields."""

import json
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

import msgspec

T = TypeVar("T")
# A whole number that counts something.
Count = Annotated[int, msgspec.Meta(ge=0)]


def encode(value: object) -> bytes:
    """Return `value` as JSON: dataclasses become objects, sets lists in any order, paths texts."""
    # By json, which writes names that are no text too.
    return json.dumps(plain(value), separators=(",", ":")).encode()


def decode(kind: type[T], data: bytes) -> T:
    """Return what `encode` made `data` from.

    Raises:
        ValueError: the data is no JSON, or not of that shape.
    """
    try:
        return typed(kind, json.loads(data))
    except ValueError as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from None


def plain(value: object) -> Any:
    """Return `value` as `json` takes it, its fields in their order."""
    return msgspec.to_builtins(value, enc_hook=_encode_other, str_keys=True)


def typed(kind: type[T], value: object) -> T:
    """Return the `kind` that `value`, as `json` read it, describes; keys that it has no field for are passed over.

    Raises:
        ValueError: a field is missing or of another type; names it.
    """
    return msgspec.convert(value, kind, dec_hook=_decode_other, str_keys=True)


def _encode_other(value: object) -> object:
    if isinstance(value, Path | PurePosixPath):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def _decode_other(kind: type, value: object) -> object:
    if kind in (Path, PurePosixPath) and isinstance(value, str):
        return kind(value)
    raise NotImplementedError(f"{kind.__name__} has no form in JSON")
