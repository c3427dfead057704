"""Read a patch that only inserts and has no context, and put its lines in."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from auxtap.core.errors import PatchError

_HUNK = re.compile(rb"@@ -([0-9]+),0 \+([0-9]+)(?:,([0-9]+))? @@")
_NO_NEWLINE = b"\\ No newline at end of file\n"


@dataclass(frozen=True)
class FileInsertions:
    """Lines for one file: (the line of the new file that it becomes, the line with its end)."""

    path: PurePosixPath
    is_new: bool
    lines: "tuple[tuple[int, bytes], ...]"


def read_patch(patch: bytes) -> "tuple[FileInsertions, ...]":
    """Read a zero-context patch.

    Raises:
        PatchError: it does anything but insert lines below python/sglang.
    """
    found = []
    for block in re.split(rb"(?m)^(?=diff --git )", patch):
        if block:
            found.append(_read_file(block.split(b"\n")))
    if not found:
        raise PatchError("the patch is empty")
    return tuple(found)


def _read_file(lines: "list[bytes]") -> FileInsertions:
    match = re.fullmatch(rb"diff --git a/(\S+) b/(\S+)", lines[0])
    if match is None or match[1] != match[2]:
        raise PatchError(f"not a patch of one file: {lines[0][:100]!r}")
    path = PurePosixPath(match[1].decode())
    if ".." in path.parts or path.parts[:2] != ("python", "sglang"):
        raise PatchError(f"the patch would write {path}, outside python/sglang")
    is_new, left, at = False, 0, 0
    inserted: list[tuple[int, bytes]] = []
    for line in lines[1:]:
        hunk = _HUNK.fullmatch(line)
        if left:
            if not line.startswith(b"+"):
                raise PatchError(f"{path}: the patch does more than insert")
            inserted.append((at, line[1:] + b"\n"))
            at, left = at + 1, left - 1
        elif hunk is not None:
            at, left = int(hunk[2]), int(hunk[3] or b"1")
        elif line == _NO_NEWLINE.rstrip(b"\n") and inserted:
            number, last = inserted[-1]
            inserted[-1] = (number, last[:-1])
        elif line.startswith(b"new file mode "):
            is_new = True
        elif line and not line.startswith((b"index ", b"--- ", b"+++ ")):
            raise PatchError(f"{path}: the patch does more than insert")
    if left:
        raise PatchError(f"{path}: the patch ends in the middle")
    return FileInsertions(path, is_new, tuple(inserted))


def insert(data: bytes, change: FileInsertions) -> bytes:
    """Return `data` with the lines put in.

    Raises:
        PatchError: the file is too short for them.
    """
    lines = data.split(b"\n")
    last = lines.pop()
    whole = [line + b"\n" for line in lines] + ([last] if last else [])
    for number, line in change.lines:
        if not 1 <= number <= len(whole) + 1:
            raise PatchError(f"{change.path} has no line {number}")
        whole.insert(number - 1, line)
    return b"".join(whole)
