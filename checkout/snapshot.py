"""Commit a package's files to a cached local git repository, the same content always to the same commit."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from auxtap.checkout.repository import (
    IDENTITY_DATE,
    IDENTITY_EMAIL,
    IDENTITY_NAME,
    GitError,
    git_line,
    git_succeeds,
    run_git,
)
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import SourceError
from auxtap.core.files import fsync_directory, held_lock
from auxtap.core.source_tree import PACKAGE_ROOT

BRANCH = "refs/heads/source"
_BUILDING = ".building-"


@dataclass(frozen=True)
class Snapshot:
    """A bare repository in the cache and the commit in it."""

    repository: Path
    commit: str


def find_snapshot(name: str, cache: CacheLayout) -> Snapshot | None:
    """Return the snapshot called `name` when it stands whole in the cache."""
    repository = cache.sources / name
    if not repository.is_dir():
        return None
    try:
        commit = git_line(repository, "rev-parse", "--verify", f"{BRANCH}^{{commit}}")
    except GitError:
        return None
    if not git_succeeds(repository, "rev-list", "--objects", "--quiet", commit):
        return None
    return Snapshot(repository, commit)


def keep_snapshot(name: str, message: str, files: Mapping[PurePosixPath, bytes], cache: CacheLayout) -> Snapshot:
    """Return the snapshot called `name`, built from `files` (paths below the package) where it is absent or broken.

    Raises:
        SourceError: the cache cannot be written.
    """
    try:
        with held_lock(cache.sources / f".{name}.lock"):
            found = find_snapshot(name, cache)
            if found is not None:
                return found
            for stale in cache.sources.glob(f"{_BUILDING}{name}-*"):
                shutil.rmtree(stale)
            return _build(name, message, files, cache)
    except OSError as error:
        raise SourceError(
            f"cannot write {error.filename or cache.sources}: {error.strerror or error}",
            hint="set AUXTAP_CACHE to a folder of yours with free space",
        ) from None
    except GitError as error:
        raise SourceError(f"git could not keep the source: {error}", hint=f"check {cache.sources}") from None


def _build(name: str, message: str, files: Mapping[PurePosixPath, bytes], cache: CacheLayout) -> Snapshot:
    final = cache.sources / name
    building = Path(tempfile.mkdtemp(prefix=f"{_BUILDING}{name}-", dir=cache.sources))
    try:
        run_git(building, "init", "--quiet", "--bare", "--template=", "--object-format=sha1", ".")
        run_git(building, "symbolic-ref", "HEAD", BRANCH)
        run_git(building, "fast-import", "--quiet", "--done", stdin=_import_stream(message, files))
        building.chmod(0o755)
        _replace_repository(building, final)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    fsync_directory(cache.sources)
    return Snapshot(final, git_line(final, "rev-parse", "--verify", f"{BRANCH}^{{commit}}"))


def _replace_repository(building: Path, final: Path) -> None:
    """Put a new repository in the place of none or of a broken one, keeping the worktrees that lean on it."""
    if final.exists():
        broken = final.with_name(f"{_BUILDING}{final.name}-broken-{os.getpid()}")
        final.rename(broken)
        if (broken / "worktrees").is_dir():
            shutil.copytree(broken / "worktrees", building / "worktrees")
    building.rename(final)


def _import_stream(message: str, files: Mapping[PurePosixPath, bytes]) -> bytes:
    text = message.encode()
    who = f"{IDENTITY_NAME} <{IDENTITY_EMAIL}> {IDENTITY_DATE}".encode()
    parts = [b"commit " + BRANCH.encode() + b"\nauthor " + who + b"\ncommitter " + who]
    parts.append(b"\ndata %d\n%b\ndeleteall\n" % (len(text), text))
    for path, data in sorted(files.items()):
        name = os.fsencode(PACKAGE_ROOT / path)
        if b"\n" in name:
            raise SourceError(f"a file name of the package holds a newline: {str(path)!r}")
        quoted = b'"' + name.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
        parts.append(b"M 100644 inline %b\ndata %d\n%b\n" % (quoted, len(data), data))
    parts.append(b"done\n")
    return b"".join(parts)
