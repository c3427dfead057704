"""Open an SGLang tree: a git checkout, an installed package or a released wheel."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Literal

from auxtap.checkout.releases import PYPI_PREFIX, ReleaseWheel, find_release
from auxtap.checkout.repository import GitError, git_line, git_succeeds, list_tree, read_blobs, run_git
from auxtap.checkout.snapshot import Snapshot, find_snapshot, keep_snapshot
from auxtap.checkout.tree_release import UNKNOWN_RELEASE, release_of_commit, release_of_files
from auxtap.checkout.wheel import fetch_wheel, is_package_file, read_package
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import SourceError
from auxtap.core.source_tree import PACKAGE_MARK, PACKAGE_ROOT, SourceTree, files_digest, find_package, package_files

SourceKind = Literal["checkout", "package", "pypi"]
Progress = Callable[[str], None]
MAX_FILE_BYTES = 128 << 20
_MAX_SHOWN = 5
_SPEC_HINT = "give a git checkout (PATH or PATH@REF), an installed sglang folder, or pypi:0.5.9"


@dataclass(frozen=True)
class Source:
    """An opened SGLang tree.

    `repository` is the git repository that holds `commit`, whose `.py` files are those of `tree`: the person's own for
    a checkout that is as it was committed, one in the cache otherwise. `digest` is a sha256 over the paths and contents
    of the `.py` files, whatever git says of them. `checkout` is the root of the person's repository, if it is one.
    """

    tree: SourceTree
    repository: Path
    commit: str
    kind: SourceKind
    digest: str
    checkout: Path | None = None


def _silent(_: str) -> None:
    return None


def open_source(spec: str, cache: CacheLayout, progress: Progress = _silent) -> Source:
    """Return the SGLang tree that `spec` names; nothing of it is imported.

    A checkout, named by its root or by the package in it, is its files as they are on disk; with `@REF` it is that
    commit.

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
    root = _root_of_checkout(path, ref)
    if root is not None:
        return _open_checkout(root, ref, spec, cache, progress)
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


def _root_of_checkout(path: Path, ref: str | None) -> Path | None:
    """Return the root of the git repository that `path` is, bare ones included, or whose package it names."""
    if (path / "HEAD").is_file() and (path / "objects").is_dir():
        return path
    if (path / ".git").exists():
        named = ref is not None or (path / PACKAGE_ROOT).is_dir() or not (path / "sglang" / PACKAGE_MARK).is_file()
        return path if named else None
    for root, inner in ((path.parent, PACKAGE_ROOT.parent), (path.parent.parent, PACKAGE_ROOT)):
        mark = str(PACKAGE_ROOT / PACKAGE_MARK)
        if (
            path == root / inner
            and (root / ".git").exists()
            and git_succeeds(root, "ls-files", "--error-unmatch", mark)
        ):
            return root
    return None


def _open_checkout(path: Path, ref: str | None, spec: str, cache: CacheLayout, progress: Progress) -> Source:
    commit = _resolve_commit(path, ref)
    try:
        entries = [entry for entry in list_tree(path, commit, PACKAGE_ROOT) if entry.path.suffix == ".py"]
        contents = read_blobs(path, [entry.blob for entry in entries])
        committed = dict(zip((entry.path for entry in entries), contents, strict=True))
        found = _read_checkout(path) if ref is None and (path / ".git").exists() else committed
    except GitError as error:
        raise SourceError(f"git cannot read {path}: {error}", hint="try: git fsck") from None
    mark = PACKAGE_ROOT / PACKAGE_MARK
    if mark not in found:
        where = "" if found is not committed else f" at {ref or 'HEAD'}"
        raise SourceError(
            f"{path}{where} is not an SGLang tree: no {PACKAGE_ROOT / PACKAGE_MARK} in it", hint=_SPEC_HINT
        )
    release = release_of_files(found) or release_of_commit(path, commit) or UNKNOWN_RELEASE
    changed = tuple(sorted(name for name in {*found, *committed} if found.get(name) != committed.get(name)))
    if not changed:
        return replace(_source(release, spec, Snapshot(path, commit), found, "checkout"), checkout=path)
    progress(f"{path} is read as it is on disk; {describe_changes(changed, commit)}")
    inner = {name.relative_to(PACKAGE_ROOT): data for name, data in found.items()}
    message = f"SGLang {release}\n\na checkout as it was on disk\n"
    source = _open_snapshot(_keep(release, "checkout", message, inner, cache), spec, "checkout", release)
    return replace(source, tree=replace(source.tree, commit=commit, changed=changed), checkout=path)


def describe_changes(changed: Sequence[PurePosixPath], commit: str) -> str:
    """Say which files on disk are not those of a commit."""
    n_files = "1 file differs" if len(changed) == 1 else f"{len(changed)} files differ"
    shown = ", ".join(map(str, changed[:_MAX_SHOWN])) + (", ..." if len(changed) > _MAX_SHOWN else "")
    return f"{n_files} from commit {commit[:12]}: {shown}"


def _read_checkout(root: Path) -> dict[PurePosixPath, bytes]:
    """Read the `.py` files of the package on disk, new ones too; those that git ignores are not the checkout's.

    Raises:
        GitError: git cannot list them.
    """
    listing = run_git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", f"{PACKAGE_ROOT}/")
    names = {PurePosixPath(os.fsdecode(name)) for name in listing.split(b"\0") if name.endswith(b".py")}
    try:
        places = {name: root / name for name in names}
        regular = {name: place for name, place in places.items() if place.is_file() and not place.is_symlink()}
        return {name: place.read_bytes() for name, place in regular.items() if place.stat().st_size <= MAX_FILE_BYTES}
    except OSError as error:
        raise SourceError(f"cannot read {error.filename}: {error.strerror}", hint="check its permissions") from None


def _resolve_commit(path: Path, ref: str | None) -> str:
    asked = "HEAD" if ref is None else ref
    try:
        return git_line(path, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{asked}^{{commit}}")
    except GitError as error:
        if "ownership" in str(error):
            raise SourceError(f"git does not trust {path}: {error}", hint="see git config safe.directory") from None
        hint = "git tag --list 'v*' shows the releases that this repository has; git fetch --tags gets more"
        raise SourceError(f"{path} has no commit {asked!r}", hint=hint) from None


def _open_release(locked: ReleaseWheel, spec: str, cache: CacheLayout, progress: Progress) -> Source:
    name = locked.snapshot_name
    snapshot = find_snapshot(name, cache)
    if snapshot is None:
        files = read_package(fetch_wheel(locked, cache, progress))
        progress(f"keeping {len(files)} files of SGLang {locked.release} in {cache.sources / name}")
        snapshot = keep_snapshot(name, f"SGLang {locked.release}\n\n{locked.wheel}\n", files, cache)
    return _open_snapshot(snapshot, spec, "pypi", locked.release)


def _open_package(package: Path, spec: str, cache: CacheLayout, progress: Progress) -> Source:
    laid_out = _read_package(package)
    files = {path.relative_to(PACKAGE_ROOT): data for path, data in laid_out.items()}
    release = release_of_files(laid_out) or UNKNOWN_RELEASE
    progress(f"reading {len(files)} files of {package}")
    snapshot = _keep(release, "package", f"SGLang {release}\n\ninstalled package\n", files, cache)
    return _open_snapshot(snapshot, spec, "package", release)


def _keep(
    release: str, kind: SourceKind, message: str, files: Mapping[PurePosixPath, bytes], cache: CacheLayout
) -> Snapshot:
    """Return the snapshot of files that no commit of the person's holds, under a name that says what is in it."""
    name = f"sglang-{re.sub(r'[^A-Za-z0-9.+]', '_', release)}-{kind}-{files_digest(files)[:16]}.git"
    return find_snapshot(name, cache) or keep_snapshot(name, message, files, cache)


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
