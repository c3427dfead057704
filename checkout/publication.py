"""Where a written patch lies: find it, and publish both of its files or none."""

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from auxtap.core.errors import PatchError
from auxtap.core.files import publish_bytes
from auxtap.rewriters.patch.manifest import MANIFEST_NAME, PATCH_NAME, Manifest, read_manifest


@dataclass(frozen=True)
class PatchFiles:
    """The two files of a written patch."""

    patch: Path
    manifest: Path


@dataclass(frozen=True)
class PublishedPatch:
    """A written patch as it was found on disk."""

    files: PatchFiles
    patch: bytes
    manifest: Manifest


def patch_files(folder: Path) -> PatchFiles:
    """Return where a folder's patch lies."""
    return PatchFiles(folder / PATCH_NAME, folder / MANIFEST_NAME)


def publish_patch(out: Path, release: str, patch: bytes, manifest: bytes) -> PatchFiles:
    """Write `OUT/sglang-<release>/`; when the second file cannot be written the first is put back as it was.

    Raises:
        PatchError: the folder cannot be written.
    """
    files = patch_files(out / f"sglang-{re.sub(r'[^A-Za-z0-9.+]', '_', release)}")
    try:
        earlier = files.patch.read_bytes() if files.patch.exists() else None
        publish_bytes(files.patch, patch)
        try:
            publish_bytes(files.manifest, manifest)
        except BaseException:
            with contextlib.suppress(OSError):
                files.patch.unlink() if earlier is None else publish_bytes(files.patch, earlier)
            raise
    except OSError as error:
        where = error.filename or files.patch.parent
        raise PatchError(f"cannot write {where}: {error.strerror}", hint="name another folder with --out") from None
    return files


def find_patch(target: Path) -> PatchFiles | None:
    """Return the written patch that a path names (either of its files, or their folder); None when it names none."""
    if target.is_dir():
        files = patch_files(target)
        return files if files.patch.is_file() else None
    if not target.is_file() or target.suffix not in (".patch", ".json"):
        return None
    if target.suffix == ".json":
        return PatchFiles(target.with_name(PATCH_NAME), target)
    return PatchFiles(target, target.with_name(MANIFEST_NAME))


def read_published(files: PatchFiles) -> PublishedPatch:
    """Read a written patch and its manifest.

    Raises:
        PatchError: one of them is missing or cannot be read.
    """
    try:
        patch, manifest = files.patch.read_bytes(), files.manifest.read_bytes()
    except OSError as error:
        raise PatchError(
            f"cannot read {error.filename}: {error.strerror}", hint="auxtap patch writes both files of a patch"
        ) from None
    return PublishedPatch(files, patch, read_manifest(manifest, str(files.manifest)))
