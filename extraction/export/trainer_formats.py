"""Which formats there are: each is a module of `formats/`, called as the format is, whose `FORMAT` is one."""

import importlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from auxtap.core.errors import UsageError

if TYPE_CHECKING:
    from auxtap.extraction.export.contract import TrainerFormat

_PACKAGE = "auxtap.extraction.export.formats"


@cache
def format_names() -> tuple[str, ...]:
    """Return the names of all formats; none of them is imported for it."""
    names = (item.name for item in files(_PACKAGE).iterdir())
    return tuple(sorted(name.removesuffix(".py") for name in names if name.endswith(".py") and name != "__init__.py"))


def trainer_format(name: str) -> "TrainerFormat":
    """Return the format of that name, its packages not looked for yet.

    Raises:
        UsageError: there is none.
    """
    if name not in format_names():
        raise UsageError(f"unknown format {name!r}", hint=f"formats: {', '.join(format_names())}")
    found: TrainerFormat = importlib.import_module(f"{_PACKAGE}.{name}").FORMAT
    return found


def trainer_formats() -> "tuple[TrainerFormat, ...]":
    """Return every format, by name."""
    return tuple(map(trainer_format, format_names()))
