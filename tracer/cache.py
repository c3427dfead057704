"""Keep traces of file contents, and whole reports of commits, so that nothing is traced twice.

Entries are named by a digest of what they were made from and of the tracer's own code, and published whole: a killed
run leaves no half entry, runs side by side write the same bytes, and an entry that cannot be read counts as absent.
"""

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TypeVar

from auxtap.core.files import publish_bytes
from auxtap.tracer.codec import decode, encode
from auxtap.tracer.entries import FileTrace
from auxtap.tracer.report import TraceReport

T = TypeVar("T")


@dataclass(frozen=True)
class TraceCache:
    """Traces below one folder; with `folder` None nothing is kept."""

    folder: Path | None

    @cached_property
    def _code(self) -> bytes:
        """A digest of the code that makes traces: this package, libcst and the interpreter."""
        digest = hashlib.sha256(f"python {platform.python_version()}\n".encode() + _parser_version())
        for path in sorted(Path(__file__).parent.glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.digest()

    def find_trace(self, path: PurePosixPath, data: bytes) -> FileTrace | None:
        """Return the trace of a file of this content, wherever such a file was traced before."""
        found = self._read(self._trace_name(data), FileTrace)
        return None if found is None else replace(found, file=path)

    def keep_trace(self, trace: FileTrace, data: bytes) -> None:
        """Keep the trace of a file's content."""
        self._write(self._trace_name(data), trace)

    def find_report(self, commit: str, options: Sequence[str]) -> TraceReport | None:
        """Return the report that was made of a commit with these options."""
        return self._read(self._report_name(commit, options), TraceReport)

    def keep_report(self, report: TraceReport, options: Sequence[str]) -> None:
        """Keep a whole report."""
        self._write(self._report_name(report.commit, options), report)

    def _trace_name(self, data: bytes) -> str:
        digest = hashlib.sha256(self._code)
        digest.update(data)
        return f"files/{digest.hexdigest()}"

    def _report_name(self, commit: str, options: Sequence[str]) -> str:
        digest = hashlib.sha256(self._code)
        digest.update("\0".join((commit, *options)).encode(errors="surrogateescape"))
        return f"reports/{digest.hexdigest()}"

    def _place(self, name: str) -> Path | None:
        if self.folder is None:
            return None
        kind, _, digest = name.partition("/")
        return self.folder / kind / digest[:2] / f"{digest}.json"

    def _read(self, name: str, kind: type[T]) -> T | None:
        place = self._place(name)
        if place is None:
            return None
        try:
            return decode(kind, json.loads(place.read_bytes()))
        except (OSError, ValueError):
            return None

    def _write(self, name: str, value: object) -> None:
        place = self._place(name)
        if place is None:
            return
        try:
            publish_bytes(place, json.dumps(encode(value), ensure_ascii=False, separators=(",", ":")).encode())
        except OSError:
            # A full or read-only cache makes the next run slow, not this one wrong.
            return


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
