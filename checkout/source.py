"""Open an SGLang tree: a git checkout, an installed package or a released wheel."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Literal

from auxtap.checkout.releases import PYPI_PREFIX, ReleaseWheel, find_release
from auxtap.checkout.repository import GitError, git_line, list_tree, read_blobs, run_git
from auxtap.checkout.snapshot import Snapshot, find_snapshot, keep_snapshot
from auxtap.checkout.version import UNKNOWN_RELEASE, release_of_commit, release_of_files
from auxtap.checkout.wheel import fetch_wheel, is_package_file, read_package
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import SourceError
from auxtap.core.source_tree import PACKAGE_MARK, PACKAGE_ROOT, SourceTree, files_digest, find_package, package_files

SourceKind = Literal["checkout", "package", "pypi"]
MAX_FILE_BYTES = 128 << 20
_SPEC_HINT = "give a git checkout (PATH or PATH@REF), an installed sglang folder, or pypi:0.5.9"


@dataclass(frozen=True)
class Source:
    """An opened SGLang tree.

    `repository` is the git repository that holds `commit` (the person's own for a checkout, one in the cache
    otherwise); `digest` is a sha256 over the paths and contents of the `.py` files, whatever git says of them.
    """

    tree: SourceTree
    repository: Path
    commit: str
    kind: SourceKind
    digest: str


def _silent(_: str) -> None:
    return None


def open_source(spec: str, cache: CacheLayout, progress: Callable[[str], None] = _silent) -> Source:
    """Return the SGLang tree that `spec` names; nothing of it is imported.

    Raises:
        SourceError: there is no such path, ref or release, it is no SGLang tree, or a wheel cannot be had.
    """
    if spec.startswith(PYPI_PREFIX):
        return _open_release(find_release(spec.removeprefix(PYPI_PREFIX)), spec, cache, progress)
    path, ref = _split_spec(spec)
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise SourceError(f"{path} {what}", hint=_SPEC_HINT)
    path = path.resolve()
    if _is_checkout(path, ref):
        return _open_checkout(path, ref, spec, progress)
    if ref is not None:
        raise SourceError(f"{path} is not the root of a git repository, so it has no {ref!r}", hint=_SPEC_HINT)
    package = find_package(path)
    if package is None:
        raise SourceError(f"{path} is not an SGLang tree: no sglang/{PACKAGE_MARK} in it", hint=_SPEC_HINT)
    return _open_package(package, spec, cache, progress)


def _split_spec(spec: str) -> tuple[Path, str | None]:
    if not spec or "\0" in spec:
        raise SourceError("the source is empty", hint=_SPEC_HINT)
    whole = Path(spec).expanduser()
    if whole.exists() or "@" not in spec:
        return whole, None
    path, _, ref = spec.rpartition("@")
    return Path(path or ".").expanduser(), ref


def _is_checkout(path: Path, ref: str | None) -> bool:
    """Tell whether `path` is the root of a git repository, bare ones included."""
    if (path / "HEAD").is_file() and (path / "objects").is_dir():
        return True
    if not (path / ".git").exists():
        return False
    if ref is not None:
        return True
    return (path / PACKAGE_ROOT).is_dir() or not (path / "sglang" / PACKAGE_MARK).is_file()


def _open_checkout(path: Path, ref: str | None, spec: str, progress: Callable[[str], None]) -> Source:
    commit = _resolve_commit(path, ref)
    try:
        entries = list_tree(path, commit, PACKAGE_ROOT)
        if PACKAGE_ROOT / PACKAGE_MARK not in {entry.path for entry in entries}:
            raise SourceError(
                f"{path} at {ref or 'HEAD'} is not an SGLang tree: no {PACKAGE_ROOT / PACKAGE_MARK} in it",
                hint=_SPEC_HINT,
            )
        sources = [entry for entry in entries if entry.path.suffix == ".py"]
        contents = read_blobs(path, [entry.blob for entry in sources])
    except GitError as error:
        raise SourceError(f"git cannot read {path}: {error}", hint="try: git fsck") from None
    files = dict(zip((entry.path for entry in sources), contents, strict=True))
    if ref is None and _is_dirty(path):
        progress(f"{path} has uncommitted changes; they are left alone and not read: commit {commit[:12]} is")
    release = release_of_files(files) or release_of_commit(path, commit) or UNKNOWN_RELEASE
    return _source(release, spec, Snapshot(path, commit), files, "checkout")


def _resolve_commit(path: Path, ref: str | None) -> str:
    asked = "HEAD" if ref is None else ref
    try:
        return git_line(path, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{asked}^{{commit}}")
    except GitError as error:
        if "ownership" in str(error):
            raise SourceError(f"git does not trust {path}: {error}", hint="see git config safe.directory") from None
        hint = "git tag --list 'v*' shows the releases that this repository has; git fetch --tags gets more"
        raise SourceError(f"{path} has no commit {asked!r}", hint=hint) from None


def _is_dirty(path: Path) -> bool:
    try:
        return bool(run_git(path, "status", "--porcelain", "--untracked-files=no", "--", str(PACKAGE_ROOT)))
    except GitError:
        return False


def _open_release(locked: ReleaseWheel, spec: str, cache: CacheLayout, progress: Callable[[str], None]) -> Source:
    name = locked.snapshot_name
    snapshot = find_snapshot(name, cache)
    if snapshot is None:
        files = read_package(fetch_wheel(locked, cache, progress))
        progress(f"keeping {len(files)} files of SGLang {locked.release} in {cache.sources / name}")
        snapshot = keep_snapshot(name, f"SGLang {locked.release}\n\n{locked.wheel}\n", files, cache)
    return _open_snapshot(snapshot, spec, "pypi", locked.release)


def _open_package(package: Path, spec: str, cache: CacheLayout, progress: Callable[[str], None]) -> Source:
    laid_out = _read_package(package)
    files = {path.relative_to(PACKAGE_ROOT): data for path, data in laid_out.items()}
    release = release_of_files(laid_out) or UNKNOWN_RELEASE
    name = f"sglang-{re.sub(r'[^A-Za-z0-9.+]', '_', release)}-package-{files_digest(files)[:16]}.git"
    snapshot = find_snapshot(name, cache)
    if snapshot is None:
        progress(f"keeping {len(files)} files of {package} in {cache.sources / name}")
        snapshot = keep_snapshot(name, f"SGLang {release}\n\ninstalled package\n", files, cache)
    return _open_snapshot(snapshot, spec, "package", release)


def _read_package(package: Path) -> dict[PurePosixPath, bytes]:
    try:
        return {
            inner: path.read_bytes()
            for inner, path in package_files(package)
            if is_package_file(inner) and path.stat().st_size <= MAX_FILE_BYTES
        }
    except OSError as error:
        raise SourceError(f"cannot read {error.filename}: {error.strerror}", hint="check its permissions") from None


def _open_snapshot(snapshot: Snapshot, spec: str, kind: SourceKind, release: str) -> Source:
    try:
        entries = list_tree(snapshot.repository, snapshot.commit, PACKAGE_ROOT)
        sources = [entry for entry in entries if entry.path.suffix == ".py"]
        contents = read_blobs(snapshot.repository, [entry.blob for entry in sources])
    except GitError as error:
        raise SourceError(
            f"the cached repository {snapshot.repository} cannot be read: {error}",
            hint="delete it and run the command again",
        ) from None
    files = dict(zip((entry.path for entry in sources), contents, strict=True))
    return _source(release, spec, snapshot, files, kind)


def _source(
    release: str, spec: str, snapshot: Snapshot, files: Mapping[PurePosixPath, bytes], kind: SourceKind
) -> Source:
    ordered = MappingProxyType(dict(sorted(files.items())))
    tree = SourceTree(release=release, origin=spec, commit=snapshot.commit, files=ordered)
    return Source(tree, snapshot.repository, snapshot.commit, kind, files_digest(ordered))
