"""A written patch on disk: whole, or in parts, with the tap's files kept once for all releases.

A folder of a release holds the manifest and either `capture.patch`, which stands by itself, or `inserted.patch`, the
lines for SGLang's own files alone. The tap's files of the latter are those of this installation, and where a release
has one of its own (the table of backbones), it lies in `tables/` beside the folders, by its digest. A patch in parts is
put together when it is read; what comes out must have the digest that the manifest says.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from auxtap.core.files import sha256_bytes
from auxtap.core.patch_text import PatchTextError

PATCH_NAME, MANIFEST_NAME = "capture.patch", "manifest.json"
INSERTED_NAME = "inserted.patch"
TABLES_NAME = "tables"
_TAP = Path(__file__).resolve().parent.parent / "tap"
_NO_NEWLINE = b"\n\\ No newline at end of file\n"


def table_path(folder: Path, path: PurePosixPath, digest: str) -> Path:
    """Return where the file of the tap that is a release's own lies, for the folder of that release."""
    return folder.parent / TABLES_NAME / f"{path.stem}-{digest[:12]}.txt"


def is_of_all_releases(path: PurePosixPath, digest: str) -> bool:
    """Tell whether a file of the tap is just the one of this installation."""
    own = _TAP / path.name
    return own.is_file() and sha256_bytes(own.read_bytes()) == digest


def read_patch_of(folder: Path, new_files: Mapping[PurePosixPath, str]) -> bytes:
    """Return the patch of a folder, put together if it lies in parts; `new_files` are the tap's, with their sha256.

    Raises:
        PatchTextError: a file of the tap is not the one that the patch was written with.
        OSError: a file is missing or cannot be read.
    """
    whole = folder / PATCH_NAME
    if whole.is_file():
        return whole.read_bytes()
    inserted = (folder / INSERTED_NAME).read_bytes()
    added = ((path, _read_new_file(folder, path, digest)) for path, digest in sorted(new_files.items()))
    return put_together(inserted, added)


def _read_new_file(folder: Path, path: PurePosixPath, digest: str) -> bytes:
    found = (place for place in (_TAP / path.name, table_path(folder, path, digest)) if place.is_file())
    data = next((data for data in (place.read_bytes() for place in found) if sha256_bytes(data) == digest), None)
    if data is None:
        raise PatchTextError(f"{folder} is for another {path.name} than this auxtap's: write it anew with auxtap sweep")
    return data


def put_together(inserted: bytes, new_files: Iterable[tuple[PurePosixPath, bytes]]) -> bytes:
    """Return the patch that inserts lines and adds files, in their order."""
    return inserted + b"".join(_new_file(path, data) for path, data in new_files)


def blob_id(data: bytes) -> str:
    """Return git's name for a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _new_file(path: PurePosixPath, data: bytes) -> bytes:
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\nindex {'0' * 40}..{blob_id(data)}\n"
    if not data:
        return head.encode()
    lines = data.removesuffix(b"\n").split(b"\n")
    count = "1" if len(lines) == 1 else f"1,{len(lines)}"
    head += f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +{count} @@\n"
    body = b"\n".join(b"+" + line for line in lines)
    return head.encode() + body + (b"\n" if data.endswith(b"\n") else _NO_NEWLINE)
