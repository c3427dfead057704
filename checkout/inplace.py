"""Patch an installed package where it lies, with a record beside it, and put it back as it was.

The record and the original bytes of each patched file lie in `sglang/.auxtap`. The record is written first: killed at
any point, `restore_package` finds each file either as it was or as the patch left it.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from auxtap.checkout.source import Source
from auxtap.core.codec import plain, typed
from auxtap.core.errors import WorktreeError
from auxtap.core.files import publish_bytes, publish_json, sha256_bytes, sha256_file
from auxtap.core.source_tree import PACKAGE_MARK, PACKAGE_ROOT, SourceTree
from auxtap.rewriters.patch.diff import PatchSet

SCHEMA = 1
FOLDER = ".auxtap"
_RECORD = "record.json"
_ABSENT = ""


@dataclass(frozen=True)
class PatchedPackage:
    """An installed package that `auxtap apply --in-place` patched.

    `before` and `after` map each patched and added file, by its path in the package, to its sha256; the digest of a
    file that was not there is empty. `is_whole` is false while the files are being written.
    """

    path: Path
    release: str
    patch_digest: str
    source_digest: str
    models: tuple[str, ...]
    layers: tuple[int, ...]
    server_flags: tuple[str, ...]
    before: Mapping[PurePosixPath, str]
    after: Mapping[PurePosixPath, str]
    is_whole: bool


def package_folder(path: Path) -> Path:
    """Return the folder of the package that a person names, itself or by the site-packages around it.

    Raises:
        WorktreeError: there is none.
    """
    for folder in (path.expanduser(), path.expanduser() / "sglang"):
        if (folder / PACKAGE_MARK).is_file():
            return folder.resolve()
    raise WorktreeError(f"{path} is no installed sglang package", hint="name its folder, such as site-packages/sglang")


def patch_package(source: Source, patch_set: PatchSet, package: Path, released: SourceTree) -> PatchedPackage:
    """Write the patched files over those of `package`, whose source was read before; `released` is its release.

    Raises:
        WorktreeError: the package is patched already, is not what was released, changed since it was read, or cannot
            be written. Nothing is changed then.
    """
    with _held(package):
        if (package / FOLDER / _RECORD).exists():
            raise WorktreeError(f"{package} is patched already", hint=f"auxtap revert {package}")
        _require_release(package, released)
        patched = _planned(source, patch_set, package)
        _require(package, patched.before, "changed since it was read")
        try:
            _write(patched, patch_set)
        except OSError as error:
            _put_back(patched)
            raise WorktreeError(
                f"cannot write {error.filename or package}: {error.strerror}", hint="the package is as it was"
            ) from None
        return read_package_record(package)


def _planned(source: Source, patch_set: PatchSet, package: Path) -> PatchedPackage:
    changes = {change.path.relative_to(PACKAGE_ROOT): change for change in patch_set.changes}
    added = {file.path.relative_to(PACKAGE_ROOT): sha256_bytes(file.data) for file in patch_set.new_files}
    return PatchedPackage(
        path=package,
        release=source.tree.release,
        patch_digest=patch_set.digest,
        source_digest=source.digest,
        models=patch_set.plan.models,
        layers=patch_set.plan.layers,
        server_flags=patch_set.plan.server_flags,
        before={path: change.before_sha256 for path, change in changes.items()} | dict.fromkeys(added, _ABSENT),
        after={path: change.after_sha256 for path, change in changes.items()} | added,
        is_whole=False,
    )


def _require_release(package: Path, released: SourceTree) -> None:
    """Hold every Python file of the release against the package; what else lies there is not the release's."""
    expected = {path.relative_to(PACKAGE_ROOT): sha256_bytes(data) for path, data in released.files.items()}
    _require(package, expected, f"not what SGLang {released.release} was released with")


def _require(package: Path, expected: Mapping[PurePosixPath, str], what: str) -> None:
    wrong = [path for path, digest in expected.items() if _digest(package / path) != digest]
    if wrong:
        n_files = f"{len(wrong)} file is" if len(wrong) == 1 else f"{len(wrong)} files are"
        raise WorktreeError(
            f"{n_files} {what} in {package}: {', '.join(map(str, wrong[:3]))}{', ...' if len(wrong) > 3 else ''}",
            hint="apply to a worktree instead: auxtap apply SOURCE --worktree DIR",
        )


def _digest(path: Path) -> str:
    """Return the sha256 of a file, of a link what it leads to, and nothing for what is no file."""
    return sha256_file(path) if path.is_file() else _ABSENT


def _write(patched: PatchedPackage, patch_set: PatchSet) -> None:
    for change in patch_set.changes:
        _keep(patched, change.before)
    publish_json(patched.path / FOLDER / _RECORD, _to_json(patched))
    for file in patch_set.new_files:
        _publish(patched.path / file.path.relative_to(PACKAGE_ROOT), file.data)
    for change in patch_set.changes:
        _publish(patched.path / change.path.relative_to(PACKAGE_ROOT), change.after)
    _require(patched.path, patched.after, "not what was written")
    publish_json(patched.path / FOLDER / _RECORD, _to_json(patched) | {"is_whole": True})


def _keep(patched: PatchedPackage, data: bytes) -> None:
    """Keep original bytes under their digest, which ends in no `.py`: they are no part of the package."""
    publish_bytes(patched.path / FOLDER / "before" / sha256_bytes(data), data)


def _publish(path: Path, data: bytes) -> None:
    """Replace a file rather than write into it: an installer may have linked it to others. Its mode stays."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    publish_bytes(path, data)
    path.chmod(mode)


def find_patched_package(path: Path) -> Path | None:
    """Return the package with a record that a person names, or None."""
    for folder in (path.expanduser(), path.expanduser() / "sglang"):
        if (folder / FOLDER / _RECORD).is_file():
            return folder.resolve()
    return None


def check_package(package: Path) -> PatchedPackage:
    """Return the record of a package after holding its files against it, as before serving.

    Raises:
        WorktreeError: it is half patched, or a patched file was changed.
    """
    patched = read_package_record(package)
    if not patched.is_whole:
        raise WorktreeError(
            f"{package} is half patched: auxtap apply was killed in it", hint=f"auxtap revert {package}"
        )
    _require(package, patched.after, "not what auxtap apply left")
    return patched


def restore_package(package: Path, *, force: bool = False) -> PatchedPackage:
    """Put every file back as it was, remove what was added, and the record last.

    Raises:
        WorktreeError: a file is neither as it was nor as the patch left it (unless `force`), or cannot be written.
    """
    with _held(package):
        patched = read_package_record(package)
        changed = [
            path
            for path, digest in patched.after.items()
            if _digest(package / path) not in (digest, patched.before[path])
        ]
        if changed and not force:
            shown = ", ".join(map(str, changed[:3]))
            raise WorktreeError(
                f"{len(changed)} files of {package} were changed after auxtap apply: {shown}",
                hint="keep your work elsewhere first, or put the originals back with --force",
            )
        try:
            _put_back(patched)
        except OSError as error:
            raise WorktreeError(
                f"cannot write {error.filename or package}: {error.strerror}", hint="run auxtap revert again"
            ) from None
        return patched


def _put_back(patched: PatchedPackage) -> None:
    kept = patched.path / FOLDER / "before"
    for path, digest in patched.before.items():
        place = patched.path / path
        if digest == _ABSENT:
            place.unlink(missing_ok=True)
        elif _digest(place) != digest:
            _publish(place, (kept / digest).read_bytes())
    for folder in sorted({path.parent for path, digest in patched.before.items() if digest == _ABSENT}, reverse=True):
        _remove_if_empty(patched.path / folder)
    shutil.rmtree(patched.path / FOLDER, ignore_errors=True)


def _remove_if_empty(folder: Path) -> None:
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def _held(package: Path) -> Iterator[None]:
    """Keep other runs out of the package by a lock on the folder itself, which leaves nothing behind."""
    if not os.access(package, os.W_OK):
        raise WorktreeError(f"{package} cannot be written", hint="use an environment of your own, or a worktree")
    handle = os.open(package, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise WorktreeError(f"another auxtap is at work in {package}", hint="wait until it has ended") from None
    finally:
        os.close(handle)


def _to_json(patched: PatchedPackage) -> dict[str, Any]:
    values = plain(patched)
    del values["path"]
    return {"schema": SCHEMA, **values}


def read_package_record(package: Path) -> PatchedPackage:
    """Return the record of a patched package.

    Raises:
        WorktreeError: there is none, or it cannot be read.
    """
    path = package / FOLDER / _RECORD
    try:
        record = typed(dict[str, Any], json.loads(path.read_bytes()))
        if record.get("schema") != SCHEMA:
            raise ValueError(f"schema {record.get('schema')!r}")
        patched = typed(PatchedPackage, {**record, "path": str(package)})
        # All within the package, whoever wrote it.
        if any(inner.is_absolute() or ".." in inner.parts for inner in (*patched.before, *patched.after)):
            raise ValueError("a path leaves the package")
        return patched
    except OSError:
        raise WorktreeError(f"{package} was not patched by auxtap", hint="auxtap apply SOURCE --in-place") from None
    except ValueError as error:
        raise WorktreeError(f"the record of {package} cannot be read: {error!r}", hint=f"see {path}") from None
