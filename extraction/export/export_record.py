"""What an export has done so far, line by line; a file counts only when its line is whole."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from auxtap.core.errors import ExtractionError

RECORD_VERSION = 1
DONE = "done.jsonl"


@dataclass(frozen=True)
class ExportIdentity:
    """What an export is of; another one needs a folder of its own."""

    format: str
    layers: tuple[int, ...]
    finals: tuple[str, ...]
    run: str
    dataset: str
    split: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as the record's first line."""
        values = asdict(self)
        return {"auxtap_export": RECORD_VERSION, **values, "layers": list(self.layers), "finals": list(self.finals)}


@dataclass(frozen=True)
class DoneFile:
    """A sample's file, whole under its name; `sources` are the digests of the store's files that it was made of."""

    index: int
    file: str
    n_bytes: int
    sources: tuple[str, ...]


class ExportRecord:
    """The lines so far, and a file to append more to."""

    def __init__(self, file: BinaryIO, done: dict[int, DoneFile]) -> None:
        """Take over an open file; made by `open_record`."""
        self._file = file
        self.done = done

    def append(self, line: DoneFile) -> None:
        """Write a line; the file that it speaks of has its name already."""
        self.done[line.index] = line
        record = {**asdict(line), "sources": list(line.sources)}
        self._file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Make the lines durable."""
        os.fsync(self._file.fileno())
        self._file.close()


def open_record(folder: Path, identity: ExportIdentity, out: Path) -> ExportRecord:
    """Open the record in `folder` of the export at `out`, or begin one.

    Raises:
        ExtractionError: it is of something else, or `out` holds files that no record speaks of.
        OSError: it cannot be read or written.
    """
    path = folder / DONE
    text = path.read_bytes() if path.exists() else b""
    whole = text.rfind(b"\n") + 1
    lines = text[:whole].splitlines()
    first = json.dumps(identity.to_json(), separators=(",", ":")).encode()
    if not lines:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ExtractionError(f"{out} is there already and is no export of auxtap's", hint="give another --out")
        begun: BinaryIO = path.open("wb")
        begun.write(first + b"\n")
        begun.flush()
        return ExportRecord(begun, {})
    if lines[0] != first:
        raise ExtractionError(f"{out} is an export of something else: {_differences(lines[0], identity)}", hint=_OTHER)
    file: BinaryIO = path.open("r+b")
    file.truncate(whole)
    file.seek(whole)
    return ExportRecord(file, _read_lines(lines[1:]))


_OTHER = "give another --out, or remove that folder and its record beside it"


def _read_lines(lines: list[bytes]) -> dict[int, DoneFile]:
    done: dict[int, DoneFile] = {}
    for text in lines:
        try:
            value = json.loads(text)
            line = DoneFile(value["index"], value["file"], value["n_bytes"], tuple(value["sources"]))
        except (ValueError, KeyError, TypeError):
            # Not believed: the sample is written again.
            continue
        done[line.index] = line
    return done


def _differences(first: bytes, identity: ExportIdentity) -> str:
    try:
        old = json.loads(first)
    except ValueError:
        return "its record is unreadable"
    if not isinstance(old, dict):
        return "its record is unreadable"
    new = identity.to_json()
    changed = [f"{key} {old.get(key)!r}, now {new[key]!r}" for key in new if old.get(key) != new[key]]
    return "; ".join(changed) or "its record is of another form"
