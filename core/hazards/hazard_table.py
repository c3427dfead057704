"""The table: the rows of the folder beside this module."""

import functools
import importlib
import pkgutil

from auxtap.core.hazards import rows
from auxtap.core.hazards.row import Hazard


@functools.cache
def all_hazards() -> tuple[Hazard, ...]:
    """Return every row, by name."""
    return tuple(_read(name) for name in sorted(info.name for info in pkgutil.iter_modules(rows.__path__)))


def hazard(name: str) -> Hazard:
    """Return the row of that name."""
    return next(row for row in all_hazards() if row.name == name)


def _read(name: str) -> Hazard:
    row: Hazard = importlib.import_module(f"{rows.__name__}.{name}").HAZARD
    if row.name != name:
        raise ValueError(f"{rows.__name__}.{name} holds the hazard {row.name}: file and hazard have one name")
    return row
