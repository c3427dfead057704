"""Where a written patch lies: find it, and publish all of its files or none."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from auxtap.core.errors import PatchError
from auxtap.core.files import publish_bytes, sha256_bytes
from auxtap.core.patch_parts import (
    INSERTED_NAME,
    MANIFEST_NAME,
    PATCH_NAME,
    TABLES_NAME,
    is_of_all_releases,
    read_patch_of,
    table_path,
)
from auxtap.core.patch_text import PatchTextError
from auxtap.rewriters.patch.diff import PatchSet
from auxtap.rewriters.patch.manifest import Manifest, read_manifest


@dataclass(frozen=True)
class PatchFiles:
    """The two files of a written patch; `patch` may be the inserted lines alone."""

    patch: Path
    manifest: Path


@dataclass(frozen=True)
class PublishedPatch:
    """A written patch as it was found on disk; `patch` stands by itself, however it lies there."""

    files: PatchFiles
    patch: bytes
    manifest: Manifest


def patch_files(folder: Path) -> PatchFiles:
    """Return where a folder's patch lies."""
    whole, parts = folder / PATCH_NAME, folder / INSERTED_NAME
    return PatchFiles(parts if parts.is_file() and not whole.is_file() else whole, folder / MANIFEST_NAME)


def publish_patch(out: Path, release: str, patch: bytes, manifest: bytes) -> PatchFiles:
    """Write `OUT/sglang-<release>/` with a patch that stands by itself.

    Raises:
        PatchError: the folder cannot be written.
    """
    folder = _release_folder(out, release)
    return _publish(PatchFiles(folder / PATCH_NAME, folder / MANIFEST_NAME), patch, manifest)


def publish_parts(out: Path, patch_set: PatchSet, manifest: bytes) -> PatchFiles:
    """Write `OUT/sglang-<release>/` with the inserted lines alone, and below `OUT/tables` what of the tap is its own.

    Raises:
        PatchError: a folder cannot be written.
    """
    folder = _release_folder(out, patch_set.plan.release)
    with _told():
        for file in patch_set.new_files:
            digest = sha256_bytes(file.data)
            place = table_path(folder, file.path, digest)
            if not is_of_all_releases(file.path, digest) and not place.is_file():
                publish_bytes(place, file.data)
    files = _publish(PatchFiles(folder / INSERTED_NAME, folder / MANIFEST_NAME), patch_set.inserted, manifest)
    (folder / PATCH_NAME).unlink(missing_ok=True)
    return files


def remove_unused_tables(out: Path) -> None:
    """Remove the tables below `OUT` that no manifest there names."""
    wanted = {
        table_path(path.parent, PurePosixPath(entry["path"]), entry["sha256"])
        for path in out.glob(f"*/{MANIFEST_NAME}")
        for entry in json.loads(path.read_bytes())["new_files"]
    }
    for path in (out / TABLES_NAME).glob("*"):
        if path not in wanted:
            path.unlink()


def _release_folder(out: Path, release: str) -> Path:
    return out / f"sglang-{re.sub(r'[^A-Za-z0-9.+]', '_', release)}"


def _publish(files: PatchFiles, patch: bytes, manifest: bytes) -> PatchFiles:
    """Write both files; when the second cannot be written the first is put back as it was."""
    with _told():
        earlier = files.patch.read_bytes() if files.patch.exists() else None
        publish_bytes(files.patch, patch)
        try:
            publish_bytes(files.manifest, manifest)
        except BaseException:
            with contextlib.suppress(OSError):
                files.patch.unlink() if earlier is None else publish_bytes(files.patch, earlier)
            raise
    return files


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PatchError(
            f"cannot write {error.filename}: {error.strerror}", hint="name another folder with --out"
        ) from None


def find_patch(target: Path) -> PatchFiles | None:
    """Return the written patch that a path names (either of its files, or their folder); None when it names none."""
    if target.is_dir():
        files = patch_files(target)
        return files if files.patch.is_file() else None
    if not target.is_file() or target.suffix not in (".patch", ".json"):
        return None
    if target.suffix == ".json":
        return PatchFiles(patch_files(target.parent).patch, target)
    return PatchFiles(target, target.with_name(MANIFEST_NAME))


def read_published(files: PatchFiles) -> PublishedPatch:
    """Read a written patch and its manifest.

    Raises:
        PatchError: one of them is missing or cannot be read, or the parts do not belong together.
    """
    try:
        manifest = read_manifest(files.manifest.read_bytes(), str(files.manifest))
        return PublishedPatch(files, _read_patch(files.patch, manifest.new_files), manifest)
    except OSError as error:
        raise PatchError(
            f"cannot read {error.filename}: {error.strerror}", hint="auxtap patch writes both files of a patch"
        ) from None
    except PatchTextError as error:
        raise PatchError(
            str(error), hint="auxtap patch SOURCE --out DIR writes a patch that stands by itself"
        ) from None


def _read_patch(path: Path, new_files: Mapping[PurePosixPath, str]) -> bytes:
    return read_patch_of(path.parent, new_files) if path.name == INSERTED_NAME else path.read_bytes()
