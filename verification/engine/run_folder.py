"""A folder for one run of servers, and an end to what killed runs left."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from auxtap.checkout.repository import GitError
from auxtap.checkout.source import Source
from auxtap.checkout.worktree import AppliedWorktree, apply_patch, discard
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import WorktreeError
from auxtap.core.files import held_lock, publish_bytes
from auxtap.rewriters.patch.diff import PatchSet

_PREFIX, _LOCK = "run-", ".lock"
_TREE, _REPOSITORY = "tree", "repository"


@contextlib.contextmanager
def run_folder(cache: CacheLayout) -> Iterator[Path]:
    """Make a folder below the cache that lives as long as the block.

    A lock says that its run is alive. Folders of runs that are not, which were killed before they could tidy up, are
    removed first, with the worktree that may stand in them.

    Raises:
        WorktreeError: a worktree in it cannot be removed in the end.
    """
    root = cache.root / "verification"
    _remove_left_over(root)
    folder = root / f"{_PREFIX}{secrets.token_hex(4)}"
    making = folder.with_name(f".{folder.name}")
    with held_lock(making):
        # It is locked before it bears the name that others look for.
        making.replace(_lock_of(folder))
        try:
            folder.mkdir()
            yield folder
        finally:
            _remove(folder)


def apply_in(folder: Path, source: Source, patch_set: PatchSet) -> AppliedWorktree:
    """Apply a patch to a worktree in the folder of a run, which goes with it.

    Raises:
        WorktreeError: git refuses, or the bytes on disk are not those that were expected.
    """
    publish_bytes(folder / _REPOSITORY, bytes(source.repository.resolve()))
    return apply_patch(source, patch_set, folder / _TREE)


def _remove_left_over(root: Path) -> None:
    for lock in sorted(root.glob(f"{_PREFIX}*{_LOCK}")):
        # What cannot be removed is tried again by the next run.
        with contextlib.suppress(BlockingIOError, WorktreeError), held_lock(lock, wait=False):
            _remove(lock.with_name(lock.name.removesuffix(_LOCK)))


def _remove(folder: Path) -> None:
    noted = folder / _REPOSITORY
    if noted.is_file():
        repository = Path(os.fsdecode(noted.read_bytes()))
        try:
            if repository.is_dir():
                discard(repository, (folder / _TREE).resolve())
        except GitError as error:
            raise WorktreeError(
                f"git could not remove {folder / _TREE}: {error}", hint="see git worktree list"
            ) from None
    shutil.rmtree(folder, ignore_errors=True)
    _lock_of(folder).unlink(missing_ok=True)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + _LOCK)
