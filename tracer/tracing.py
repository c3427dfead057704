"""Trace one file, or a whole tree."""

from pathlib import PurePosixPath

from auxtap.tracer.report import FileTrace


def trace_file(path: PurePosixPath, data: bytes) -> FileTrace:
    """Return every capture site and stage branch of one source file.

    Raises:
        SourceError: the file is not Python.
    """
    raise NotImplementedError
