"""A folder for one run of servers, and an end to what killed runs left."""

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from auxtap.checkout.worktree import revert
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import AuxtapError
from auxtap.core.files import held_lock

TREE = "tree"
_PREFIX, _LOCK = "run-", ".lock"


@contextlib.contextmanager
def run_folder(cache: CacheLayout) -> Iterator[Path]:
    """Make a folder below the cache that lives as long as the block.

    A lock says that its run is alive. Folders of runs that are not, which were killed before they could tidy up, are
    removed first, with the worktree that may stand in them.
    """
    root = cache.root / "verification"
    _remove_left_over(root)
    folder = root / f"{_PREFIX}{secrets.token_hex(4)}"
    with held_lock(_lock_of(folder)):
        try:
            folder.mkdir()
            yield folder
        finally:
            _remove(folder)


def _remove_left_over(root: Path) -> None:
    for lock in sorted(root.glob(f"{_PREFIX}*{_LOCK}")):
        with contextlib.suppress(BlockingIOError), held_lock(lock, wait=False):
            _remove(lock.with_name(lock.name.removesuffix(_LOCK)))


def _remove(folder: Path) -> None:
    if (folder / TREE).exists():
        # A worktree that was killed before it had a record is only a folder; git forgets it when it is gone.
        with contextlib.suppress(AuxtapError):
            revert(folder / TREE, force=True)
    shutil.rmtree(folder, ignore_errors=True)
    _lock_of(folder).unlink(missing_ok=True)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + _LOCK)
