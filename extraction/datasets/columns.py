"""Read rows of Parquet files and Arrow streams, batch by batch; the only module that knows pyarrow."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.extraction.datasets.conversations import RECORD_FIELDS
from auxtap.extraction.datasets.record import Place, Record, damaged

# Rows that are read, and rows that are Python objects, at a time.
_BATCH_ROWS = 16
_ROWS_AT_ONCE = 4
# What an Arrow stream ends with when it was written to its end (Arrow's columnar format, "IPC Streaming Format").
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise UsageError(
            f"{path.name} needs pyarrow, which is not installed beside auxtap", hint="pip install 'auxtap[data]'"
        ) from None
    return pyarrow


def open_zstd(path: Path) -> io.BufferedReader:
    """Open a file packed with zstd; what is damaged raises an OSError without a number when it is read.

    Raises:
        UsageError: pyarrow is not installed.
    """
    return io.BufferedReader(_pyarrow(path).input_stream(str(path), compression="zstd"), 1 << 20)


def parquet_records(path: Path) -> Iterator[Record]:
    """Give the rows of a Parquet file.

    Raises:
        ExtractionError: the file is not whole, or holds no column that a dataset has.
        UsageError: pyarrow is not installed.
    """
    arrow = _pyarrow(path)
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            columns = _known(path, file.schema_arrow.names)
            # One thread: pyarrow's own would read ahead and hold what nobody has asked for yet.
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns, use_threads=False):
                for row in _rows(batch):
                    number += 1
                    yield Record(Place(path, number, "row"), row)
    except (arrow.ArrowException, OSError) as error:
        raise _broken(path, number, error, "a Parquet file whose end was not written has no footer") from None


def arrow_records(path: Path) -> Iterator[Record]:
    """Give the rows of an Arrow stream, the files of which `datasets` makes its folders.

    Raises:
        ExtractionError: the file is not whole, or holds no column that a dataset has.
        UsageError: pyarrow is not installed.
    """
    arrow = _pyarrow(path)
    number = 0
    try:
        with path.open("rb") as file:
            file.seek(-len(_END_OF_STREAM), os.SEEK_END)
            whole = file.read() == _END_OF_STREAM
        if not whole:
            raise damaged(path, "the mark at the end of an Arrow stream is missing, so it was not written to its end")
        with arrow.OSFile(str(path)) as file, arrow.ipc.open_stream(file) as stream:
            columns = _known(path, stream.schema.names)
            for batch in stream:
                for row in _rows(batch.select(columns)):
                    number += 1
                    yield Record(Place(path, number, "row"), row)
    except (arrow.ArrowException, OSError) as error:
        raise _broken(path, number, error, "an Arrow stream") from None


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    for begin in range(0, batch.num_rows, _ROWS_AT_ONCE):
        yield from batch.slice(begin, _ROWS_AT_ONCE).to_pylist()


def _known(path: Path, names: list[str]) -> list[str]:
    columns = [name for name in names if name in RECORD_FIELDS]
    if not {"messages", "conversations", "input_ids"} & set(columns):
        raise ExtractionError(
            f"dataset {path} has no column messages, conversations or input_ids, only {', '.join(names) or 'none'}",
            hint="auxtap extract --help names the shapes that a record may have",
        )
    return columns


def _broken(path: Path, number: int, error: Exception, what: str) -> Exception:
    if isinstance(error, OSError) and error.errno is not None:
        return error
    text = " ".join(str(error).split())
    return damaged(path, f"it cannot be read after row {number}: {text[:200]} ({what})")
