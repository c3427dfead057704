"""Apply a patch to a git worktree of its own, check it, and take it away again."""

import contextlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from auxtap.checkout.repository import GitError, git_line, git_succeeds, run_git
from auxtap.checkout.source import Source, describe_changes
from auxtap.checkout.worktree_record import AppliedWorktree, absolute_path, read_applied, write_applied
from auxtap.core.errors import WorktreeError
from auxtap.core.files import sha256_bytes, sha256_file
from auxtap.core.source_tree import PACKAGE_ROOT
from auxtap.rewriters.patch.diff import PatchSet

BRANCH_PREFIX = "auxtap/"
_HEADS = "refs/heads/"
_BYTECODE = "__pycache__"
_NO_COMMIT = "0" * 40

__all__ = [
    "AppliedWorktree",
    "RevertedWorktree",
    "apply_patch",
    "check_applied",
    "differing_files",
    "discard",
    "read_applied",
    "require_free",
    "revert",
]


@dataclass(frozen=True)
class RevertedWorktree:
    """What `revert` removed."""

    path: Path
    repository: Path
    branch: str


def apply_patch(source: Source, patch_set: PatchSet, worktree: Path) -> AppliedWorktree:
    """Make a worktree at the source's commit, apply the patch in it and commit it on a new branch.

    The person's checkout, index, stash and branches stay as they are. When a step fails, the worktree and the
    branch are removed again.

    Raises:
        WorktreeError: `worktree` exists, the source is no commit's, git refuses, or the bytes on disk are not those
            that were expected.
    """
    worktree = require_free(worktree)
    require_committed(source)
    if worktree.is_relative_to(source.repository.resolve() / ".git"):
        raise WorktreeError(f"{worktree} lies inside a repository's .git", hint="name a folder elsewhere")
    try:
        with contextlib.ExitStack() as undo:
            for folder in [folder for folder in worktree.parents if not folder.exists()][::-1]:
                folder.mkdir()
                undo.callback(_remove_empty, folder)
            branch = _make_branch(source, patch_set)
            undo.callback(_remove_branch, source.repository, branch)
            worktree.mkdir()
            undo.callback(_remove_worktree, source.repository, worktree)
            applied = _apply(source, patch_set, worktree, branch)
            undo.pop_all()
            return applied
    except GitError as error:
        raise WorktreeError(f"git could not prepare {worktree}: {error}", hint="nothing was left behind") from None
    except OSError as error:
        where = error.filename or worktree
        raise WorktreeError(f"cannot write {where}: {error.strerror}", hint="nothing was left behind") from None


def require_committed(source: Source) -> None:
    """Refuse a checkout that is on disk not as it was committed: a worktree would hold other files than were read.

    Raises:
        WorktreeError: it is one; names the files.
    """
    if source.tree.changed:
        raise WorktreeError(
            f"{source.checkout}: {describe_changes(source.tree.changed, source.tree.commit)}; a worktree is a commit's",
            hint=f"commit or stash them first, or apply the commit as it is: {source.checkout}@HEAD",
        )


def require_free(worktree: Path) -> Path:
    """Return the absolute path of a worktree that can be made.

    Raises:
        WorktreeError: something stands there already.
    """
    worktree = absolute_path(worktree)
    if worktree.exists() or worktree.is_symlink():
        raise WorktreeError(f"{worktree} exists already", hint="name a folder that does not exist yet")
    return worktree


def _make_branch(source: Source, patch_set: PatchSet) -> str:
    """Make a branch of its own at the source's commit, numbered when its name is taken, and return its name."""
    release = re.sub(r"[^A-Za-z0-9.+]", "_", source.tree.release)
    name = f"{BRANCH_PREFIX}sglang-{release}-{patch_set.digest[:8]}"
    listing = git_line(source.repository, "for-each-ref", "--format=%(refname)", _HEADS)
    # A worktree may stand on a branch that is gone: where a removal was killed half way.
    stood_on = [facts["branch"] for facts in _worktrees(source.repository) if "branch" in facts]
    taken = {ref.removeprefix(_HEADS) for ref in (*listing.splitlines(), *stood_on)}
    if BRANCH_PREFIX.rstrip("/") in taken:
        raise WorktreeError(
            f"{source.repository} has a branch called auxtap, so git cannot make {name}", hint="rename that branch"
        )
    number = 1
    while (branch := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    # Made only if it does not exist: another process may have chosen the same name since.
    run_git(source.repository, "update-ref", _HEADS + branch, source.commit, _NO_COMMIT)
    return branch


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _remove_branch(repository: Path, branch: str) -> None:
    with contextlib.suppress(GitError):
        run_git(repository, "update-ref", "-d", _HEADS + branch)


def _remove_worktree(repository: Path, worktree: Path) -> None:
    with contextlib.suppress(GitError):
        run_git(repository, "worktree", "remove", "--force", str(worktree))
    shutil.rmtree(worktree, ignore_errors=True)


def _apply(source: Source, patch_set: PatchSet, worktree: Path, branch: str) -> AppliedWorktree:
    run_git(source.repository, "worktree", "add", "--quiet", str(worktree), branch)
    begun = _begun(source, patch_set, worktree, branch)
    # Killed from here on, the worktree has a record by which revert can remove it.
    write_applied(begun)
    _require_digests(worktree, {change.path: change.before_sha256 for change in patch_set.changes}, "before patching")
    run_git(
        worktree,
        *("apply", "--unidiff-zero", "--whitespace=nowarn", "--no-ignore-whitespace", "-"),
        stdin=patch_set.patch,
    )
    after = {change.path: change.after_sha256 for change in patch_set.changes}
    after |= {file.path: sha256_bytes(file.data) for file in patch_set.new_files}
    _require_digests(worktree, after, "after git apply, which reported success")
    run_git(worktree, "add", "--force", "--", *map(str, after))
    message = f"Tap the hidden states of SGLang {source.tree.release}\n\nauxtap patch {patch_set.digest}\n"
    run_git(worktree, "commit", "--quiet", "--no-verify", "--file=-", stdin=message.encode())
    applied = replace(begun, commit=git_line(worktree, "rev-parse", "--verify", "HEAD"), files=after)
    _require_commit(applied)
    write_applied(applied)
    return applied


def _begun(source: Source, patch_set: PatchSet, worktree: Path, branch: str) -> AppliedWorktree:
    """Return the record of a worktree in which nothing is patched yet: it lists no files."""
    return AppliedWorktree(
        path=worktree,
        repository=source.repository,
        branch=branch,
        base_commit=source.commit,
        commit=source.commit,
        release=source.tree.release,
        origin=source.tree.origin,
        patch_digest=patch_set.digest,
        source_digest=source.digest,
        models=patch_set.plan.models,
        layers=patch_set.plan.layers,
        server_flags=patch_set.plan.server_flags,
        files={},
    )


def _require_digests(worktree: Path, expected: Mapping[PurePosixPath, str], when: str) -> None:
    wrong = differing_files(worktree, expected)
    if wrong:
        raise WorktreeError(
            f"{len(wrong)} files of {worktree} are not what was expected {when}: {', '.join(map(str, wrong[:3]))}",
            hint="check the repository's .gitattributes and filters: files must be checked out byte for byte",
        )


def _require_commit(applied: AppliedWorktree) -> None:
    """Hold the commit against the plan: these files and no other, and nothing left uncommitted."""
    changed = git_line(applied.path, "diff", "--name-only", "--no-renames", applied.base_commit, applied.commit)
    if set(changed.splitlines()) != {str(path) for path in applied.files}:
        raise WorktreeError(f"the commit in {applied.path} holds other files than the patch", hint="report this")
    if changes := _local_changes(applied.path):
        raise WorktreeError(
            f"{applied.path} differs from its own commit in {changes[0]}",
            hint="check the repository's .gitattributes: files must be committed byte for byte",
        )


def differing_files(worktree: Path, expected: Mapping[PurePosixPath, str]) -> tuple[PurePosixPath, ...]:
    """Return the files whose bytes on disk have not the expected sha256, missing ones and links included."""
    wrong = []
    for path, digest in expected.items():
        file = worktree / path
        if file.is_symlink() or not file.is_file() or sha256_file(file) != digest:
            wrong.append(path)
    return tuple(wrong)


def check_applied(worktree: Path) -> AppliedWorktree:
    """Return the record of a worktree after holding its files against it, as before serving.

    Raises:
        WorktreeError: `apply` did not make it, or a file of it is not what `apply` left.
    """
    applied = read_applied(worktree)
    hint = "make a fresh one with auxtap apply, or undo the changes in this one"
    if not applied.files:
        raise WorktreeError(f"{applied.path} is half made: auxtap apply was killed in it", hint="auxtap revert --force")
    wrong = differing_files(applied.path, applied.files)
    if wrong:
        raise WorktreeError(f"{wrong[0]} in {applied.path} is not what auxtap apply left", hint=hint)
    try:
        head = git_line(applied.path, "rev-parse", "--verify", "HEAD")
    except GitError as error:
        raise WorktreeError(f"git cannot read {applied.path}: {error}", hint=hint) from None
    if head != applied.commit:
        raise WorktreeError(f"{applied.path} is at commit {head[:12]}, not at {applied.commit[:12]}", hint=hint)
    changed = [path for path in _local_changes(applied.path) if PurePosixPath(path).is_relative_to(PACKAGE_ROOT)]
    if changed:
        raise WorktreeError(f"{changed[0]} in {applied.path} was changed after auxtap apply", hint=hint)
    return applied


def _local_changes(worktree: Path) -> list[str]:
    """Return the paths that differ from the commit or are new; bytecode is nobody's work."""
    try:
        listing = run_git(worktree, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
    except GitError as error:
        raise WorktreeError(f"git cannot read {worktree}: {error}", hint="its repository may be gone") from None
    paths = [entry[3:] for entry in listing.decode(errors="surrogateescape").split("\0") if entry]
    return [path for path in paths if _BYTECODE not in PurePosixPath(path).parts]


def revert(worktree: Path, *, force: bool = False) -> RevertedWorktree:
    """Remove a worktree that `apply` made, and its branch; nothing else.

    Raises:
        WorktreeError: `apply` did not make it, or, without `force`, it holds other commits or local changes.
    """
    applied = read_applied(worktree)
    ref = _HEADS + applied.branch
    if not force and git_succeeds(applied.path, "rev-parse", "--verify", "--quiet", ref):
        _require_untouched(applied, ref)
    try:
        # The branch goes first: interrupted here, the worktree still has its record and revert can be run again.
        run_git(applied.repository, "update-ref", "-d", ref)
        run_git(applied.repository, "worktree", "remove", "--force", str(applied.path))
    except GitError as error:
        raise WorktreeError(f"git could not remove {applied.path}: {error}", hint="see git worktree list") from None
    return RevertedWorktree(applied.path, applied.repository, applied.branch)


def discard(repository: Path, worktree: Path) -> None:
    """Remove a worktree that `apply` may have been killed in, at whatever step, and the branch of ours that it is on.

    Raises:
        GitError: git cannot remove it.
    """
    for facts in _worktrees(repository):
        if facts.get("worktree") == str(worktree):
            # Twice, because git keeps a worktree locked while it makes it.
            run_git(repository, "worktree", "remove", "--force", "--force", str(worktree))
            branch = facts.get("branch", "")
            if branch.startswith(_HEADS + BRANCH_PREFIX):
                _remove_branch(repository, branch.removeprefix(_HEADS))


def _worktrees(repository: Path) -> list[dict[str, str]]:
    """Return what git knows of each worktree of a repository: `worktree`, its path, and mostly `branch`, a full ref."""
    listing = run_git(repository, "worktree", "list", "--porcelain").decode(errors="surrogateescape")
    return [dict(line.partition(" ")[::2] for line in entry.split("\n")) for entry in listing.split("\n\n")]


def _require_untouched(applied: AppliedWorktree, ref: str) -> None:
    hint = "keep your work elsewhere first, or remove it with --force"
    for name in ("HEAD", ref):
        tip = git_line(applied.path, "rev-parse", "--verify", name)
        if tip != applied.commit:
            what = f"{name} of {applied.path} is at {tip[:12]}"
            raise WorktreeError(f"{what}, not at the commit {applied.commit[:12]} that apply made", hint=hint)
    if changes := _local_changes(applied.path):
        shown = ", ".join(changes[:3]) + (", ..." if len(changes) > 3 else "")
        raise WorktreeError(f"{applied.path} holds {len(changes)} local changes: {shown}", hint=hint)
