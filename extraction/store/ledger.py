"""The append-only record of every sample's fate; the last line of an id wins."""

import contextlib
import json
import math
import os
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from msgspec import Meta

from auxtap.core.codec import Count, plain, typed
from auxtap.core.errors import IntegrityError

STORED, SKIPPED, FAILED = "stored", "skipped", "failed"
_FATES = (STORED, SKIPPED, FAILED)
_FILE = re.compile(r"samples/([0-9]{8,9})\.pp([0-9]{1,4})\.(safetensors|pt)")


def utc_now() -> str:
    """Return the time as the ledger writes it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")  # noqa: UP017 - nodes may have Python 3.10


@dataclass(frozen=True)
class LedgerPart:
    """One stored file: `file` is relative to the store, `digest` of the whole file, `tap_digest` the tap's own."""

    file: str
    stage: Count
    dp: Count
    states: tuple[str, ...]
    n_bytes: Count
    digest: str
    tap_digest: str


@dataclass(frozen=True)
class LedgerLine:
    """The fate of one sample: stored, skipped (never sent) or failed (after `attempts` in this session).

    `split` is empty when nothing is held out. `seconds` went by between its first request and its fate.
    """

    index: Count
    sample_id: str
    fate: str
    reason: str
    n_tokens: Count
    attempts: Count
    ids_digest: str
    parts: tuple[LedgerPart, ...]
    time: str
    split: str = ""
    seconds: Annotated[float, Meta(ge=0)] = 0.0

    def __post_init__(self) -> None:
        if self.fate not in _FATES or bool(self.parts) != (self.fate == STORED):
            raise ValueError(f"fate {self.fate!r} with {len(self.parts)} parts")
        for part in self.parts:
            match = _FILE.fullmatch(part.file)
            if match is None or (int(match[1]), int(match[2])) != (self.index, part.stage):
                raise ValueError(f"file {part.file!r} is not that of sample {self.index}, stage {part.stage}")
        if not math.isfinite(self.seconds):
            raise ValueError("seconds is no duration")

    def to_json(self) -> dict[str, Any]:
        """Return the line as it is written."""
        record: dict[str, Any] = plain(self)
        record = {"id" if key == "sample_id" else key: value for key, value in record.items()}
        return {key: value for key, value in record.items() if value or key not in ("split", "seconds")}

    @classmethod
    def from_json(cls, value: object) -> "LedgerLine":
        """Read a line.

        Raises:
            ValueError: it is no ledger line.
        """
        record = typed(dict[str, Any], value)
        if "id" not in record:
            raise ValueError("id is missing")
        return typed(cls, {**record, "sample_id": record["id"]})


@dataclass(frozen=True)
class BadLine:
    """A whole line that is no ledger line."""

    number: int
    reason: str


@dataclass(frozen=True)
class LedgerText:
    """A ledger as it lies on disk; `torn_bytes` of a line whose end was never written follow `whole_bytes`."""

    lines: tuple[LedgerLine, ...]
    bad_lines: tuple[BadLine, ...]
    whole_bytes: int
    torn_bytes: int

    def last_lines(self) -> dict[str, LedgerLine]:
        """Return the line that counts for each id."""
        return {line.sample_id: line for line in self.lines}


def scan_ledger(path: Path) -> LedgerText:
    """Read a ledger, the bad lines too; one that is not there is empty."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return LedgerText((), (), 0, 0)
    whole = data.rfind(b"\n") + 1
    lines: list[LedgerLine] = []
    bad: list[BadLine] = []
    for number, text in enumerate(data[:whole].split(b"\n")[:-1], start=1):
        try:
            lines.append(LedgerLine.from_json(json.loads(text)))
        except (ValueError, RecursionError) as error:
            bad.append(BadLine(number, f"unreadable ledger line: {error}"))
    return LedgerText(tuple(lines), tuple(bad), whole, len(data) - whole)


def read_ledger(path: Path) -> LedgerText:
    """Read a ledger that is to be gone on with.

    Raises:
        IntegrityError: a whole line is unreadable; names it.
    """
    ledger = scan_ledger(path)
    for bad in ledger.bad_lines:
        raise IntegrityError(
            f"{path}:{bad.number}: {bad.reason}",
            hint="the store was changed from outside; take the line out to have its sample extracted again",
        )
    return ledger


class LedgerWriter:
    """Appends lines, each of them durable when `append` returns."""

    def __init__(self, path: Path, whole_bytes: int) -> None:
        """Open `path` and cut off whatever follows its last whole line."""
        self._file: BinaryIO = path.open("ab", buffering=0)
        self._file.truncate(whole_bytes)
        self._whole_bytes = whole_bytes

    def append(self, line: LedgerLine) -> None:
        """Write a line in one piece and fsync it; one that cannot be written whole is taken back.

        Raises:
            OSError: it cannot be written.
        """
        data = json.dumps(line.to_json(), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        whole = self._whole_bytes + len(data)
        try:
            while data:
                data = data[self._file.write(data) :]
            os.fsync(self._file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._whole_bytes)
            raise
        self._whole_bytes = whole

    def close(self) -> None:
        """Close the file."""
        self._file.close()
