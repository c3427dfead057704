"""Write a plan down as a patch: zero context for git, three lines of context for people."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from auxtap.core.files import sha256_bytes
from auxtap.core.patch_parts import blob_id, put_together
from auxtap.core.source_tree import SourceTree
from auxtap.rewriters.patch.plan import CapturePlan, NewFile
from auxtap.rewriters.places.insertion import Insertion

SHOWN_CONTEXT = 3
_NO_NEWLINE = b"\n\\ No newline at end of file\n"


@dataclass(frozen=True)
class FileChange:
    """An upstream file before and after; `insertions` are in line order."""

    path: PurePosixPath
    before: bytes
    after: bytes
    insertions: tuple[Insertion, ...]

    @property
    def before_sha256(self) -> str:
        """The digest of the original bytes."""
        return sha256_bytes(self.before)

    @property
    def after_sha256(self) -> str:
        """The digest of the patched bytes."""
        return sha256_bytes(self.after)


@dataclass(frozen=True)
class PatchSet:
    """A plan with the bytes that it comes to.

    `patch` is the zero-context form that is applied; `inserted` is its beginning, without the tap's files.
    """

    plan: CapturePlan
    changes: tuple[FileChange, ...]
    inserted: bytes
    patch: bytes

    @property
    def digest(self) -> str:
        """The patch digest: the sha256 of its bytes."""
        return sha256_bytes(self.patch)

    @property
    def new_files(self) -> tuple[NewFile, ...]:
        """The tap's files."""
        return self.plan.new_files

    @property
    def n_inserted(self) -> int:
        """Lines inserted into upstream's files."""
        return sum(len(insertion.lines) for insertion in self.plan.insertions)

    def for_people(self) -> bytes:
        """Return the changes of upstream's files with three lines of context."""
        return b"".join(_file_patch(change, SHOWN_CONTEXT) for change in self.changes)


def write_patch(tree: SourceTree, plan: CapturePlan) -> PatchSet:
    """Return the patch of `plan` on `tree`: changed files by path, then the tap's files by path."""
    changes = []
    for path in plan.touched:
        insertions = tuple(insertion for insertion in plan.insertions if insertion.path == path)
        before = tree.files[path]
        changes.append(FileChange(path, before, _insert(before, insertions), insertions))
    inserted = b"".join(_file_patch(change, 0) for change in changes)
    patch = put_together(inserted, ((file.path, file.data) for file in plan.new_files))
    return PatchSet(plan, tuple(changes), inserted, patch)


def _lines(data: bytes) -> list[bytes]:
    """Split as git does: on line feeds only, each kept."""
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def _insert(before: bytes, insertions: Sequence[Insertion]) -> bytes:
    lines = _lines(before)
    for insertion in reversed(insertions):
        lines[insertion.line - 1 : insertion.line - 1] = insertion.lines
    return b"".join(lines)


def _file_patch(change: FileChange, context: int) -> bytes:
    name = str(change.path)
    # No mode: some files of a checkout may be run, and git would take their right away when the patch is reversed.
    head = f"diff --git a/{name} b/{name}\nindex {blob_id(change.before)}..{blob_id(change.after)}\n"
    head += f"--- a/{name}\n+++ b/{name}\n"
    lines = _lines(change.before)
    hunks, n_inserted = [], 0
    for group in _groups(change.insertions, context):
        hunks.append(_hunk(lines, group, n_inserted, context))
        n_inserted += sum(len(insertion.lines) for insertion in group)
    return head.encode() + b"".join(hunks)


def _groups(insertions: Sequence[Insertion], context: int) -> list[list[Insertion]]:
    """Join insertions whose context would overlap."""
    groups: list[list[Insertion]] = []
    for insertion in insertions:
        if groups and insertion.line - groups[-1][-1].line <= 2 * context:
            groups[-1].append(insertion)
        else:
            groups.append([insertion])
    return groups


def _hunk(lines: list[bytes], group: list[Insertion], n_before: int, context: int) -> bytes:
    first = max(group[0].line - context, 1)
    end = min(group[-1].line + context, len(lines) + 1)
    body, at = [], first
    for insertion in group:
        body += [b" " + line for line in lines[at - 1 : insertion.line - 1]]
        body += [b"+" + line for line in insertion.lines]
        at = insertion.line
    body += [b" " + line for line in lines[at - 1 : end - 1]]
    if body[-1].startswith(b" ") and not body[-1].endswith(b"\n"):
        body[-1] += _NO_NEWLINE
    n_old = end - first
    # An empty side of a hunk counts the line before it.
    old_start = first if n_old else first - 1
    n_new = n_old + sum(len(insertion.lines) for insertion in group)
    ranges = f"@@ -{_range(old_start, n_old)} +{_range(first + n_before, n_new)} @@\n"
    return ranges.encode() + b"".join(body)


def _range(start: int, count: int) -> str:
    return str(start) if count == 1 else f"{start},{count}"
