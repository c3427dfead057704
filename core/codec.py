"""Write dataclasses as plain data and read them back, by the types of their fields."""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any, TypeVar

T = TypeVar("T")
Decoder = Callable[[Any], Any]


def encode(value: object) -> Any:
    """Return `value` as JSON can hold it: dataclasses become lists of their fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [encode(getattr(value, name)) for name in _field_names(type(value))]
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(encode(item) for item in value)
    if isinstance(value, PurePosixPath):
        return str(value)
    return value


def decode(kind: type[T], data: Any) -> T:
    """Return what `encode` made `data` from.

    Raises:
        ValueError: the data is not of that shape.
    """
    try:
        decoder: Decoder = _decoder(kind)  # type: ignore[arg-type]
        value = decoder(data)
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from error
    assert isinstance(value, kind)
    return value


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


@cache
def _decoder(kind: Any) -> Decoder:
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind)
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is tuple:
        item = _decoder(arguments[0])
        return lambda data: tuple([item(element) for element in data])
    if origin is frozenset:
        member = _decoder(arguments[0])
        return lambda data: frozenset(member(element) for element in data)
    if origin is types.UnionType or origin is typing.Union:
        inner = _decoder(next(argument for argument in arguments if argument is not types.NoneType))
        return lambda data: None if data is None else inner(data)
    if kind is PurePosixPath:
        return PurePosixPath
    if origin is Mapping:
        return _mapping
    return lambda data: data


def _mapping(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise TypeError("not a mapping")
    return data


def _dataclass_decoder(kind: Any) -> Decoder:
    hints = typing.get_type_hints(kind)
    decoders = [_decoder(hints[name]) for name in _field_names(kind)]

    def decode_fields(data: Any) -> Any:
        if not isinstance(data, list) or len(data) != len(decoders):
            raise TypeError(f"{kind.__name__} has {len(decoders)} fields")
        return kind(*[decoder(item) for decoder, item in zip(decoders, data, strict=True)])

    return decode_fields
