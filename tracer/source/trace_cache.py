"""Keep traces of file contents, and whole reports of commits, so that nothing is traced twice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from auxtap.core.kept import KeptEntries
from auxtap.tracer.report.entries import FileTrace
from auxtap.tracer.report.trace_report import TraceReport
from auxtap.tracer.source.names import names_digest

_FILES, _REPORTS = "files", "reports"


@dataclass(frozen=True)
class TraceCache:
    """Traces below one folder; with `folder` None nothing is kept."""

    folder: Path | None

    @cached_property
    def _entries(self) -> KeptEntries:
        return KeptEntries(self.folder, Path(__file__).parents[1], _parser_version() + names_digest())

    def find_trace(self, path: PurePosixPath, data: bytes) -> FileTrace | None:
        """Return the trace of a file of this content, wherever such a file was traced before."""
        found = self._entries.read(_FILES, data, FileTrace)
        return None if found is None else replace(found, file=path)

    def keep_trace(self, trace: FileTrace, data: bytes) -> None:
        """Keep the trace of a file's content."""
        self._entries.write(_FILES, data, trace)

    def find_report(self, commit: str, options: Sequence[str]) -> TraceReport | None:
        """Return the report that was made of a commit with these options."""
        return self._entries.read(_REPORTS, _asked(commit, options), TraceReport)

    def keep_report(self, report: TraceReport, options: Sequence[str]) -> None:
        """Keep a whole report."""
        self._entries.write(_REPORTS, _asked(report.commit, options), report)


def _asked(commit: str, options: Sequence[str]) -> bytes:
    return "\0".join((commit, *options)).encode(errors="surrogateescape")


def _parser_version() -> bytes:
    """Return what tells one libcst from another, without importing it or asking its metadata, which are slow."""
    spec = find_spec("libcst")
    origin = None if spec is None else spec.origin
    if origin is None:
        return b""
    try:
        return Path(origin).with_name("_version.py").read_bytes()
    except OSError:
        return origin.encode(errors="surrogateescape")


NO_CACHE = TraceCache(None)
