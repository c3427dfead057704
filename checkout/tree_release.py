"""Find out which release a tree is, reading its text as data."""

import ast
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from auxtap.checkout.repository import GitError, git_line
from auxtap.core.release import release_key
from auxtap.core.source_tree import PACKAGE_ROOT

UNKNOWN_RELEASE = "unknown"
_VERSION_FILES = ("_version.py", "version.py")
_VERSION_NAMES = ("__version__", "version")


def release_of_files(files: Mapping[PurePosixPath, bytes]) -> str | None:
    """Return the release that the package's own version file states, None when none states one."""
    for name in _VERSION_FILES:
        data = files.get(PACKAGE_ROOT / name)
        release = None if data is None else _stated_version(data)
        if release is not None and _is_release(release):
            return release
    return None


def _stated_version(data: bytes) -> str | None:
    try:
        module = ast.parse(data)
    except (SyntaxError, ValueError):
        return None
    for statement in module.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Constant):
            continue
        names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
        if names.intersection(_VERSION_NAMES) and isinstance(statement.value.value, str):
            return statement.value.value
    return None


def _is_release(text: str) -> bool:
    try:
        release_key(text)
    except ValueError:
        return False
    return True


def release_of_commit(repository: Path, commit: str) -> str | None:
    """Return the release tagged on `commit` (`v0.5.9`), or `0.5.9+<n>.g<commit>` when it stands n commits after."""
    try:
        tags = git_line(repository, "tag", "--points-at", commit).splitlines()
        exact = [tag[1:] for tag in tags if tag.startswith("v") and _is_release(tag[1:])]
        if exact:
            return max(exact, key=release_key)
        described = git_line(repository, "describe", "--tags", "--long", "--match", "v[0-9]*", commit)
    except GitError:
        return None
    tag, n_commits, _ = described.rsplit("-", 2)
    return f"{tag[1:]}+{n_commits}.g{commit[:8]}" if _is_release(tag[1:]) else None
