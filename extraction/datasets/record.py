"""One record of a dataset and where it stands."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from auxtap.core.errors import ExtractionError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands: line, row or entry `number` of `file`, counted from 1."""

    file: Path
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}:{self.number}" if self.unit == "line" else f"{self.file}: {self.unit} {self.number}"


@dataclass(frozen=True)
class Record:
    """One record; `fault` says why it is none."""

    place: Place
    value: Mapping[str, Any] = field(default_factory=dict, hash=False)
    fault: str = ""


def damaged(path: Path, reason: str) -> ExtractionError:
    """Return the error of a file of which the rest cannot be read."""
    return ExtractionError(
        f"dataset {path} is damaged: {reason}", hint="nothing was sent; copy or write the file again, it is not whole"
    )
