"""Read a patch of the one form that the tool writes: zero context, insertions only."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

_HEADER = re.compile(rb"diff --git a/(?P<old>[^\s\"]+) b/(?P<new>[^\s\"]+)\n")
_HUNK = re.compile(rb"@@ -(\d+),0 \+(\d+)(?:,(\d+))? @@\n")
_NO_NEWLINE = b"\\ No newline at end of file\n"


class PatchTextError(Exception):
    """The patch has another form; the message says where."""


@dataclass(frozen=True)
class InsertedLine:
    """One inserted line: its place in the patched file, 1-based, and its bytes with the newline."""

    line: int
    data: bytes


@dataclass(frozen=True)
class PatchedFile:
    """What a patch does to one file."""

    path: PurePosixPath
    is_new: bool
    inserted: tuple[InsertedLine, ...]


def read_patch(patch: bytes) -> tuple[PatchedFile, ...]:
    """Return what a patch inserts, file by file.

    Raises:
        PatchTextError: it removes or quotes upstream's lines, renames, changes modes, or is not a patch.
    """
    lines = patch.split(b"\n")
    if lines.pop() != b"" or not lines:
        raise PatchTextError("the patch is empty" if not patch else "the patch ends in the middle of a line")
    reader = _Reader([line + b"\n" for line in lines])
    files = []
    while not reader.at_end:
        files.append(_read_file(reader))
    if len({file.path for file in files}) != len(files):
        raise PatchTextError("a file stands in the patch twice")
    return tuple(files)


class _Reader:
    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._lines)

    def starts(self, prefix: bytes) -> bool:
        return not self.at_end and self._lines[self._at].startswith(prefix)

    def take(self, prefix: bytes) -> bytes:
        if not self.starts(prefix):
            found = "the end" if self.at_end else repr(self._lines[self._at][:60].decode(errors="replace").rstrip())
            raise PatchTextError(f"line {self._at + 1}: {prefix.decode().strip()!r} was expected, found {found}")
        self._at += 1
        return self._lines[self._at - 1]


def _read_file(reader: _Reader) -> PatchedFile:
    header = _HEADER.fullmatch(reader.take(b"diff --git "))
    if header is None or header["old"] != header["new"]:
        raise PatchTextError("a file is renamed, or its name is an unusual one")
    path = PurePosixPath(header["new"].decode(errors="replace"))
    if path.is_absolute() or ".." in path.parts:
        raise PatchTextError(f"{path} leaves the tree")
    is_new = reader.starts(b"new file mode ")
    if is_new:
        reader.take(b"new file mode 100644\n")
    reader.take(b"index ")
    inserted: list[InsertedLine] = []
    if reader.starts(b"--- "):
        reader.take(b"--- /dev/null\n" if is_new else b"--- a/" + header["old"] + b"\n")
        reader.take(b"+++ b/" + header["new"] + b"\n")
        inserted += _read_hunk(reader, path)
    while reader.starts(b"@@ "):
        inserted += _read_hunk(reader, path)
    if not inserted and not is_new:
        raise PatchTextError(f"nothing is inserted into {path}")
    return PatchedFile(path, is_new, tuple(inserted))


def _read_hunk(reader: _Reader, path: PurePosixPath) -> Iterator[InsertedLine]:
    hunk = _HUNK.fullmatch(reader.take(b"@@ "))
    if hunk is None:
        raise PatchTextError(f"a hunk of {path} does more than insert")
    first, count = int(hunk[2]), int(hunk[3] or 1)
    for number in range(count):
        data = reader.take(b"+")[1:]
        if reader.starts(_NO_NEWLINE):
            reader.take(_NO_NEWLINE)
            data = data.removesuffix(b"\n")
        yield InsertedLine(first + number, data)


def without_inserted(patched: bytes, file: PatchedFile) -> bytes:
    """Return the patched bytes with the inserted lines taken out again.

    Raises:
        PatchTextError: another text stands where a line was inserted.
    """
    lines = _lines(patched)
    for inserted in file.inserted:
        if inserted.line > len(lines) or lines[inserted.line - 1] != inserted.data:
            raise PatchTextError(f"{file.path}:{inserted.line} is not the line that was inserted")
    taken = {inserted.line for inserted in file.inserted}
    return b"".join(line for number, line in enumerate(lines, 1) if number not in taken)


def with_inserted(original: bytes, file: PatchedFile) -> bytes:
    """Return the original bytes with the lines of a patch put in.

    Raises:
        PatchTextError: the file is too short for them.
    """
    lines = _lines(original)
    for inserted in sorted(file.inserted, key=lambda each: each.line):
        if not 1 <= inserted.line <= len(lines) + 1:
            raise PatchTextError(f"{file.path} has no line {inserted.line}")
        lines.insert(inserted.line - 1, inserted.data)
    return b"".join(lines)


def _lines(data: bytes) -> list[bytes]:
    """Split at newlines alone: a form feed or a lone carriage return ends no line of a patch."""
    lines = data.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
