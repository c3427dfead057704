"""Trace one file, or a whole tree."""

from pathlib import PurePosixPath

from auxtap.tracer.branches import classify_branches
from auxtap.tracer.fragments import SourceFile
from auxtap.tracer.notes import annotate_branches, annotate_sites
from auxtap.tracer.occurrences import gather_occurrences
from auxtap.tracer.report import FileTrace
from auxtap.tracer.sites import classify_sites


def trace_file(path: PurePosixPath, data: bytes) -> FileTrace:
    """Return every capture site and stage branch of one source file.

    Raises:
        SourceError: the file is not Python.
    """
    return trace_source(SourceFile.read(path, data))


def trace_source(source: SourceFile) -> FileTrace:
    """Return every capture site and stage branch of a file that was read already."""
    gathered = gather_occurrences(source)
    sites = classify_sites(item for item in gathered.occurrences if item.kind is not None)
    branches = classify_branches(item for item in gathered.occurrences if item.kind is None)
    return FileTrace(
        file=source.path,
        capture_sites=tuple(annotate_sites(sites)),
        stage_branches=tuple(annotate_branches(branches)),
        mentions=gathered.mentions,
    )
