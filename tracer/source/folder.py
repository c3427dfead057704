"""Read any folder of Python files as a tree; what cannot be read is named, not hidden."""

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from auxtap.core.errors import SourceError
from auxtap.core.files import sha256_bytes
from auxtap.core.source_tree import SourceTree
from auxtap.tracer.report.trace_report import SkippedFile


@dataclass(frozen=True)
class FolderTree:
    """The `.py` files of a folder, and those that could not be read."""

    tree: SourceTree
    skipped: tuple[SkippedFile, ...]


def read_folder(folder: Path) -> FolderTree:
    """Return the `.py` files below `folder`; links to folders are not followed, so no loop can trap it.

    Raises:
        SourceError: there is no such folder.
    """
    if not folder.is_dir():
        raise SourceError(f"{folder} is no folder", hint="--folder takes a folder of Python files")
    files: dict[PurePosixPath, bytes] = {}
    skipped: list[SkippedFile] = []

    def note(error: OSError) -> None:
        path = Path(os.fsdecode(error.filename)) if error.filename else folder
        skipped.append(SkippedFile(_inner(path, folder), error.strerror or str(error)))

    for parent, folders, names in os.walk(folder, onerror=note):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            if path.suffix == ".py":
                try:
                    files[_inner(path, folder)] = path.read_bytes()
                except OSError as error:
                    note(error)
    lines = "".join(f"{path}\0{sha256_bytes(data)}\n" for path, data in files.items())
    digest = sha256_bytes(lines.encode(errors="surrogateescape"))
    return FolderTree(SourceTree("unknown", str(folder), digest[:40], files), tuple(skipped))


def _inner(path: Path, folder: Path) -> PurePosixPath:
    return PurePosixPath(path.relative_to(folder)) if path.is_relative_to(folder) else PurePosixPath(path)
