"""The record that `apply` leaves of a worktree, in the worktree's private git folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from auxtap.checkout.repository import GitError, git_line
from auxtap.core.codec import plain, typed
from auxtap.core.errors import WorktreeError
from auxtap.core.files import publish_json

SCHEMA = 2
RECORD_NAME = "auxtap.json"


@dataclass(frozen=True)
class AppliedWorktree:
    """A worktree that `auxtap apply` made: `commit` is the patch on top of `base_commit`, alone on `branch`.

    `server_flags` are what a server of the tree must be started with. `files` maps every patched and added file to
    its sha256; `repository` is the git repository that the worktree belongs to.
    """

    path: Path
    repository: Path
    branch: str
    base_commit: str
    commit: str
    release: str
    origin: str
    patch_digest: str
    source_digest: str
    models: tuple[str, ...]
    layers: tuple[int, ...]
    server_flags: tuple[str, ...]
    files: Mapping[PurePosixPath, str]


def absolute_path(path: Path) -> Path:
    """Resolve the folder that holds `path`, not `path` itself, which may be a link."""
    path = path.expanduser()
    return path.parent.resolve() / path.name if path.name not in ("", "..") else path.resolve()


def _record_path(worktree: Path) -> Path:
    """Return where the record of a worktree lies: in its private git folder, never among its files.

    Raises:
        GitError: it is no worktree.
    """
    return Path(git_line(worktree, "rev-parse", "--absolute-git-dir")) / RECORD_NAME


def write_applied(applied: AppliedWorktree) -> None:
    """Publish the record of a worktree.

    Raises:
        GitError: it is no worktree.
    """
    publish_json(_record_path(applied.path), {"schema": SCHEMA, **plain(applied)})


def read_applied(worktree: Path) -> AppliedWorktree:
    """Return the record that `apply` left for a worktree.

    Raises:
        WorktreeError: there is no such folder, `apply` did not make it, or its record cannot be read.
    """
    worktree = absolute_path(worktree)
    if not worktree.is_dir():
        raise WorktreeError(f"{worktree} does not exist", hint="auxtap apply SOURCE --worktree DIR makes one")
    not_ours = WorktreeError(
        f"{worktree} was not made by auxtap apply", hint="name the root of a worktree that auxtap apply made"
    )
    if not (worktree / ".git").is_file():
        raise not_ours
    try:
        record_path = _record_path(worktree)
    except GitError as error:
        raise WorktreeError(f"git cannot read {worktree}: {error}", hint="its repository may be gone") from None
    if not record_path.is_file():
        raise not_ours
    try:
        record = typed(dict[str, Any], json.loads(record_path.read_bytes()))
        if record.get("schema") != SCHEMA:
            raise ValueError(f"schema {record.get('schema')!r}")
        return typed(AppliedWorktree, {**record, "path": str(worktree)})
    except ValueError as error:
        raise WorktreeError(f"the record of {worktree} cannot be read: {error!r}", hint=f"see {record_path}") from None
