"""Read a dataset's records one after the other, whatever file they lie in; nothing is loaded whole."""

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.extraction.datasets import columns
from auxtap.extraction.datasets.json_array import DamagedArrayError, array_entries
from auxtap.extraction.datasets.record import Place, Record, damaged

_GZIP, _ZSTD, _PARQUET, _ARROW_STREAM = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"\xff\xff\xff\xff"
_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst", ".parquet", ".arrow")


def read_records(path: Path) -> Iterator[Record]:
    """Give the records of a JSONL, JSON or Parquet file, of an Arrow stream, or of a folder of such.

    gzip and zstd are unpacked on the way; what a file is follows from its first bytes, not from its name. A folder
    is what `datasets` saves (`save_to_disk`), or files of these kinds, taken in the order of their names.

    Raises:
        ExtractionError: a file cannot be read, or is damaged from some place on.
        UsageError: a package that it needs is not installed, or the folder holds several splits.
    """
    try:
        for file in _files(path):
            yield from _read_file(file)
    except OSError as error:
        raise ExtractionError(f"cannot read dataset {path}: {error.strerror or error}") from None


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if (path / "dataset_dict.json").is_file():
        splits = sorted(entry.name for entry in path.iterdir() if (entry / "state.json").is_file())
        raise UsageError(
            f"{path} holds the splits {', '.join(splits) or '(none)'}", hint=f"name one, such as {path / 'train'}"
        )
    if (path / "state.json").is_file():
        return _saved_files(path)
    files = sorted(entry for entry in path.iterdir() if entry.is_file() and entry.name.endswith(_SUFFIXES))
    if not files:
        raise ExtractionError(
            f"folder {path} holds no dataset",
            hint=f"give a file, a folder that datasets saved, or one with files such as {', '.join(_SUFFIXES[:2])}",
        )
    return files


def _saved_files(path: Path) -> list[Path]:
    """Return the data files of a folder that `Dataset.save_to_disk` of the package `datasets` wrote."""
    try:
        state = json.loads((path / "state.json").read_bytes())
        names = [entry["filename"] for entry in state["_data_files"]]
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("it names no data files")
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path, f"state.json is not what datasets writes: {error}") from None
    if state.get("_indices_data_files"):
        raise ExtractionError(
            f"{path} was saved with an index beside its rows", hint="save it again: ds.flatten_indices().save_to_disk()"
        )
    for name in names:
        if not (path / name).is_file():
            raise damaged(path, f"{name}, which state.json names, is not there")
    return [path / name for name in names]


def _read_file(path: Path) -> Iterator[Record]:
    with path.open("rb") as file:
        head = file.peek(4)[:4]
        if head == _PARQUET:
            yield from columns.parquet_records(path)
        elif head == _ARROW_STREAM:
            yield from columns.arrow_records(path)
        elif head[:2] == _GZIP:
            with gzip.open(file) as unpacked:
                yield from _read_text(path, io.BufferedReader(unpacked))
        elif head == _ZSTD:
            with columns.open_zstd(path) as unzipped:
                yield from _read_text(path, unzipped)
        else:
            yield from _read_text(path, file)


def _read_text(path: Path, file: io.BufferedReader) -> Iterator[Record]:
    number, unit = 0, "line"
    try:
        number = _skip_blanks(file)
        if file.peek(1)[:1] == b"[":
            number, unit = 0, "entry"
            for number, entry in enumerate(array_entries(file), start=1):
                yield _record(Place(path, number, unit), entry)
            return
        for line in file:
            number += 1
            if line.strip():
                yield _read_line(path, number, line)
    except DamagedArrayError as error:
        raise damaged(path, f"{error} (after entry {number} of its array)") from None
    except (EOFError, zlib.error, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise damaged(path, f"what is packed in it ends or breaks after {unit} {number} ({error})") from None


def _skip_blanks(file: io.BufferedReader) -> int:
    """Skip what stands before the first record; return how many lines that were."""
    if file.peek(3)[:3] == codecs.BOM_UTF8:
        file.read(3)
    n_lines = 0
    while (character := file.peek(1)[:1]) and character.isspace():
        n_lines += file.read(1) == b"\n"
    return n_lines


def _read_line(path: Path, number: int, data: bytes) -> Record:
    place = Place(path, number)
    try:
        return _record(place, json.loads(data))
    except json.JSONDecodeError as error:
        return Record(place, fault=f"malformed JSON: {error.msg} at column {error.colno}")
    except UnicodeDecodeError:
        return Record(place, fault="malformed JSON: not UTF-8")
    except RecursionError:
        return Record(place, fault="malformed JSON: nested too deep")
    except ValueError as error:  # a whole number of thousands of digits
        return Record(place, fault=f"malformed JSON: {error}")


def _record(place: Place, value: object) -> Record:
    if not isinstance(value, dict):
        return Record(place, fault="not a JSON object")
    return Record(place, value)
