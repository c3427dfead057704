"""Choose the written patch that fits an installed SGLang: by the bytes of its files, never by its version."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from auxtap.core.files import sha256_bytes
from auxtap.core.patch_parts import MANIFEST_NAME, read_patch_of
from auxtap.core.patch_text import PatchedFile, PatchTextError, read_patch, with_inserted
from auxtap.core.source_tree import PACKAGE_ROOT, files_digest, package_files

COMMITTED = Path(__file__).resolve().parents[2] / "generated"


class PluginRefusedError(Exception):
    """The plugin cannot give what the patch would; the message says why."""


@dataclass(frozen=True)
class PatchedSource:
    """A file that the patch changes: its bytes without and with the patch, and what is inserted."""

    before: bytes
    after: bytes
    change: PatchedFile


@dataclass(frozen=True)
class FittingPatch:
    """A patch whose digests all hold for an installed SGLang.

    `sources` are the changed files and `new_files` the tap's, by path in the tree; `source_digest` covers every
    `.py` file that is installed, as `auxtap` counts them. `server_flags` are what a server must be started with, and
    `layers` the capture indices that the patch was written for.
    """

    release: str
    patch_digest: str
    source_digest: str
    server_flags: tuple[str, ...]
    layers: tuple[int, ...]
    sources: Mapping[PurePosixPath, PatchedSource]
    new_files: Mapping[PurePosixPath, bytes]


def find_fitting_patch(package: Path, own: Path | None = None) -> FittingPatch:
    """Return the patch for the SGLang in the folder `package`: that of the folder `own`, else a committed one.

    Raises:
        PluginRefusedError: none fits, or one is damaged.
    """
    folders = [own] if own is not None else sorted(COMMITTED.glob("sglang-*"))
    manifests = {folder: _read_manifest(folder) for folder in folders}
    fitting = {folder: manifest for folder, manifest in manifests.items() if _first_other(package, manifest) is None}
    if not fitting:
        if own is not None:
            other = _first_other(package, manifests[own])
            raise PluginRefusedError(f"the patch {own} is not for this SGLang: {other} is another file")
        raise PluginRefusedError(
            f"no committed patch is for the SGLang in {package}; write one with auxtap patch, and apply it or name its "
            "folder in AUXTAP_PATCH"
        )
    installed = _installed_digest(package)
    # Releases may be alike in what the patch touches; then the whole tree tells.
    exact = [folder for folder in fitting if fitting[folder]["source_digest"] == installed]
    chosen = (exact or list(fitting))[0]
    return _read_fitting(chosen, fitting[chosen], package, installed)


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_bytes())
        {entry["path"]: entry["sha256_before"] for entry in manifest["files"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PluginRefusedError(f"{folder / MANIFEST_NAME} cannot be read: {error!r}") from None
    return dict(manifest)


def _first_other(package: Path, manifest: Mapping[str, Any]) -> str | None:
    """Return the first file that is not what the patch is for; None when all are."""
    for entry in manifest["files"]:
        try:
            data = _installed(package, PurePosixPath(entry["path"])).read_bytes()
        except OSError:
            return str(entry["path"])
        if sha256_bytes(data) != entry["sha256_before"]:
            return str(entry["path"])
    return None


def _installed(package: Path, path: PurePosixPath) -> Path:
    return package / path.relative_to(PACKAGE_ROOT)


def _installed_digest(package: Path) -> str:
    return files_digest({inner: path.read_bytes() for inner, path in package_files(package) if inner.suffix == ".py"})


def _read_fitting(folder: Path, manifest: Mapping[str, Any], package: Path, installed: str) -> FittingPatch:
    try:
        added = {PurePosixPath(entry["path"]): str(entry["sha256"]) for entry in manifest["new_files"]}
        patch = read_patch_of(folder, added)
        digest = sha256_bytes(patch)
        if digest != manifest["patch_sha256"]:
            raise PluginRefusedError(f"the patch in {folder} is not the one of the manifest beside it")
        changes = read_patch(patch)
        wanted = {PurePosixPath(entry["path"]): str(entry["sha256_after"]) for entry in manifest["files"]}
        sources = {
            change.path: _patched(change, _installed(package, change.path).read_bytes(), wanted[change.path])
            for change in changes
            if not change.is_new
        }
        new_files = {
            change.path: b"".join(line.data for line in change.inserted) for change in changes if change.is_new
        }
        flags = tuple(str(flag) for flag in manifest["server_flags"])
        layers = tuple(int(layer) for layer in manifest["default_layers"]["capture_index"])
        return FittingPatch(str(manifest["release"]), digest, installed, flags, layers, sources, new_files)
    except (OSError, KeyError, TypeError, PatchTextError) as error:
        raise PluginRefusedError(f"the patch in {folder} cannot be used: {error!r}") from None


def _patched(change: PatchedFile, before: bytes, wanted: str) -> PatchedSource:
    after = with_inserted(before, change)
    if sha256_bytes(after) != wanted:
        raise PluginRefusedError(f"{change.path} with the patch is not what the manifest says")
    return PatchedSource(before, after, change)
