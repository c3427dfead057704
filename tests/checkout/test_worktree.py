"""Apply and revert on real repositories: exactly what was asked for, and nothing of the person's."""

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import pytest

from auxtap.checkout import worktree as module
from auxtap.checkout.repository import run_git
from auxtap.checkout.source import Source, open_source
from auxtap.checkout.worktree import apply_patch, check_applied, read_applied, revert
from auxtap.checkout.worktree_record import RECORD_NAME
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import AuxtapError, ExitCode, WorktreeError
from auxtap.rewriters.patch.diff import PatchSet, write_patch
from auxtap.rewriters.patch.plan import TAP_ROOT, plan_capture
from auxtap.rewriters.patch.registry import DEFAULT_MODELS
from auxtap.tests.shaped import RUNNER, git, make_checkout, shaped_files, write_files


def patch_of(source: Source) -> PatchSet:
    return write_patch(source.tree, plan_capture(source.tree, DEFAULT_MODELS, (3, 5)))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "sgl")


@pytest.fixture
def source(checkout: Path, cache: CacheLayout) -> Source:
    return open_source(str(checkout), cache)


@pytest.fixture
def patch_set(source: Source) -> PatchSet:
    return patch_of(source)


def state(repository: Path) -> tuple[str, ...]:
    """Return everything of a repository that apply and revert must leave as it is."""
    return (
        git(repository, "status", "--porcelain", "--ignored"),
        git(repository, "for-each-ref"),
        git(repository, "stash", "list"),
        git(repository, "worktree", "list"),
        (repository / ".git/HEAD").read_text(),
        (repository / ".git/config").read_text(),
        (repository / ".git/index").read_bytes().hex(),
    )


def refused(expected: str, source: Source, patch_set: PatchSet, worktree: Path) -> None:
    before = state(source.repository)
    with pytest.raises(WorktreeError, match=expected) as caught:
        apply_patch(source, patch_set, worktree)
    assert caught.value.exit_code == ExitCode.WORKTREE
    assert state(source.repository) == before


def test_applies_and_reverts(source: Source, patch_set: PatchSet, tmp_path: Path) -> None:
    before = state(source.repository)
    applied = apply_patch(source, patch_set, tmp_path / "new/deep/wt")
    assert applied.branch == f"auxtap/sglang-0.5.9-{patch_set.digest[:8]}"
    assert git(applied.path, "rev-parse", "HEAD~1") == source.commit == applied.base_commit
    assert git(applied.path, "symbolic-ref", "HEAD") == f"refs/heads/{applied.branch}"
    assert git(applied.path, "status", "--porcelain", "--ignored") == ""
    assert git(applied.path, "log", "-1", "--format=%an <%ae>") == "auxtap <auxtap@localhost>"
    for change in patch_set.changes:
        assert (applied.path / change.path).read_bytes() == change.after
    for file in patch_set.new_files:
        assert (applied.path / file.path).read_bytes() == file.data
    assert read_applied(applied.path) == check_applied(applied.path) == applied
    assert (applied.layers, applied.models) == ((3, 5), DEFAULT_MODELS)
    assert revert(applied.path).branch == applied.branch
    assert not applied.path.exists() and state(source.repository) == before


def test_a_dirty_checkout_stays_as_it_is(checkout: Path, source: Source, patch_set: PatchSet, tmp_path: Path) -> None:
    (checkout / RUNNER).write_text("stashed = True\n")
    git(checkout, "stash")
    (checkout / RUNNER).write_text("dirty = True\n")
    (checkout / "untracked.txt").write_text("mine\n")
    write_files(checkout, {PurePosixPath("staged.py"): b"staged = True\n"})
    git(checkout, "add", "staged.py")
    before = state(checkout)
    applied = apply_patch(source, patch_set, tmp_path / "wt")
    assert (checkout / RUNNER).read_text() == "dirty = True\n"
    assert not (applied.path / "staged.py").exists()
    revert(applied.path)
    assert state(checkout) == before


def test_a_detached_head_and_an_older_ref(checkout: Path, cache: CacheLayout, tmp_path: Path) -> None:
    git(checkout, "commit", "--quiet", "--allow-empty", "--message=Later")
    git(checkout, "checkout", "--quiet", "--detach")
    source = open_source(f"{checkout}@v0.5.9", cache)
    applied = apply_patch(source, patch_of(source), tmp_path / "wt")
    assert git(applied.path, "rev-parse", "HEAD~1") == git(checkout, "rev-parse", "v0.5.9")
    assert git(checkout, "rev-parse", "--abbrev-ref", "HEAD") == "HEAD"


def test_a_shallow_clone(checkout: Path, cache: CacheLayout, tmp_path: Path) -> None:
    """One commit deep, whose parent git does not have."""
    git(checkout, "commit", "--quiet", "--allow-empty", "--message=Later")
    git(tmp_path, "clone", "--quiet", "--depth=1", checkout.as_uri(), "shallow")
    shallow = tmp_path / "shallow"
    assert git(shallow, "rev-parse", "--is-shallow-repository") == "true"
    source = open_source(str(shallow), cache)
    before = state(shallow)
    applied = apply_patch(source, patch_of(source), tmp_path / "wt")
    assert check_applied(applied.path) == applied
    revert(applied.path)
    assert state(shallow) == before


def test_a_fork_with_commits_of_its_own(checkout: Path, cache: CacheLayout, tmp_path: Path) -> None:
    """The patch is written anew for the fork's files: on lines of its own, with its own digests."""
    upstream = open_source(str(checkout), cache)
    git(tmp_path, "clone", "--quiet", str(checkout), "fork")
    fork = tmp_path / "fork"
    git(fork, "checkout", "--quiet", "-b", "ours")
    (fork / RUNNER).write_bytes(b"# Ours.\n" * 3 + (fork / RUNNER).read_bytes())
    write_files(fork, {PurePosixPath("python/sglang/srt/models/ours.py"): b"MODEL = 'ours'\n"})
    git(fork, "add", "--all")
    git(fork, "commit", "--quiet", "--message=Ours")
    source = open_source(str(fork), cache)
    assert source.tree.release == "0.5.9"
    ours, theirs = patch_of(source), patch_of(upstream)
    assert [item.line - 3 if item.path == RUNNER else item.line for item in ours.plan.insertions] == [
        item.line for item in theirs.plan.insertions
    ]
    refused("are not what was expected before patching", source, theirs, tmp_path / "wt")
    applied = apply_patch(source, ours, tmp_path / "wt")
    assert git(applied.path, "log", "-1", "--format=%s", "HEAD~1") == "Ours"


def test_the_same_source_gives_the_same_commit(source: Source, patch_set: PatchSet, tmp_path: Path) -> None:
    first = apply_patch(source, patch_set, tmp_path / "one")
    second = apply_patch(source, patch_set, tmp_path / "two")
    assert first.commit == second.commit
    assert second.branch == f"{first.branch}-2"
    revert(first.path)
    assert check_applied(second.path) == second
    assert git(source.repository, "branch", "--list", "auxtap/*", "--format=%(refname:short)") == second.branch


def test_a_package_within_another_repository(cache: CacheLayout, tmp_path: Path) -> None:
    """In a nested folder `git apply` exits 0 and does nothing; the worktree is a root of its own."""
    outer = tmp_path / "mine"
    outer.mkdir()
    git(outer, "init", "--quiet")
    write_files(outer / "third_party/sgl", shaped_files())
    source = open_source(str(outer / "third_party/sgl"), cache)
    applied = apply_patch(source, patch_of(source), outer / "wt")
    assert check_applied(applied.path).repository == source.repository
    assert git(outer, "for-each-ref") == ""
    revert(applied.path)


def test_windows_line_ends(cache: CacheLayout, tmp_path: Path) -> None:
    files = {path: data.replace(b"\n", b"\r\n") for path, data in shaped_files().items()}
    source = open_source(str(make_checkout(tmp_path / "sgl", files)), cache)
    applied = apply_patch(source, patch_of(source), tmp_path / "wt")
    assert (applied.path / RUNNER).read_bytes().count(b"\r\n") == files[RUNNER].count(b"\n") + 3


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_refuses_a_path_that_exists(kind: str, source: Source, patch_set: PatchSet, tmp_path: Path) -> None:
    path = tmp_path / "wt"
    if kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.touch()
    else:
        path.symlink_to("nowhere")
    refused("exists already", source, patch_set, path)
    assert os.path.lexists(path)


def test_refuses_where_nothing_can_be_written(source: Source, patch_set: PatchSet, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused("cannot write", source, patch_set, tmp_path / "file/deep/wt")
    refused("inside a repository's .git", source, patch_set, source.repository / ".git/wt")


def test_refuses_a_branch_in_the_way(source: Source, patch_set: PatchSet, tmp_path: Path) -> None:
    git(source.repository, "branch", "auxtap")
    refused("branch called auxtap", source, patch_set, tmp_path / "wt")


def test_refuses_a_tree_that_git_does_not_check_out_byte_for_byte(cache: CacheLayout, tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "sgl")
    (checkout / ".git/info").mkdir(exist_ok=True)
    (checkout / ".git/info/attributes").write_text("*.py text eol=crlf\n")
    source = open_source(str(checkout), cache)
    refused("not what was expected before patching", source, patch_of(source), tmp_path / "wt")
    assert not (tmp_path / "wt").exists()


def test_refuses_a_patch_for_another_tree(source: Source, cache: CacheLayout, tmp_path: Path) -> None:
    other = {**shaped_files(), RUNNER: b"# one line more\n" + shaped_files()[RUNNER]}
    patch_set = patch_of(open_source(str(make_checkout(tmp_path / "other", other)), cache))
    refused("not what was expected before patching", source, patch_set, tmp_path / "wt")


STEPS = ["_require_digests", "_require_commit", "write_applied"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", STEPS)
def test_a_failure_half_way_leaves_nothing(
    step: str,
    error: BaseException,
    source: Source,
    patch_set: PatchSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, step, fail)
    before = state(source.repository)
    with pytest.raises((WorktreeError, KeyboardInterrupt)):
        apply_patch(source, patch_set, tmp_path / "new/wt")
    assert state(source.repository) == before and not (tmp_path / "new").exists()


def test_hooks_are_not_run(source: Source, patch_set: PatchSet, tmp_path: Path) -> None:
    hooks = source.repository / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "pre-commit", "commit-msg", "post-commit", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
        (hooks / name).chmod(stat.S_IRWXU)
    git(source.repository, "config", "commit.gpgsign", "true")
    git(source.repository, "config", "gpg.program", "/bin/false")
    revert(apply_patch(source, patch_set, tmp_path / "wt").path)
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def applied(source: Source, patch_set: PatchSet, tmp_path: Path) -> module.AppliedWorktree:
    return apply_patch(source, patch_set, tmp_path / "wt")


def kept(applied: module.AppliedWorktree, expected: str) -> None:
    with pytest.raises(WorktreeError, match=expected) as caught:
        revert(applied.path)
    assert caught.value.exit_code == ExitCode.WORKTREE and "--force" in (caught.value.hint or "")
    assert applied.path.is_dir()
    assert revert(applied.path, force=True).path == applied.path
    assert not applied.path.exists()
    assert git(applied.repository, "branch", "--list", "auxtap/*") == ""


def test_revert_keeps_local_changes(applied: module.AppliedWorktree) -> None:
    (applied.path / RUNNER).write_text("mine = True\n")
    kept(applied, "1 local changes: python/sglang/srt/model_executor/model_runner.py")


def test_revert_keeps_new_files(applied: module.AppliedWorktree) -> None:
    (applied.path / "notes.txt").write_text("mine\n")
    kept(applied, "notes.txt")


def test_revert_keeps_commits(applied: module.AppliedWorktree) -> None:
    git(applied.path, "commit", "--quiet", "--allow-empty", "--message=Mine")
    kept(applied, "HEAD of")


def test_revert_keeps_commits_on_the_branch_alone(applied: module.AppliedWorktree) -> None:
    git(applied.path, "checkout", "--quiet", "--detach")
    git(applied.path, "branch", "--force", applied.branch, applied.base_commit)
    kept(applied, "refs/heads/auxtap/")


def test_bytecode_is_nobodys_work(applied: module.AppliedWorktree) -> None:
    write_files(applied.path, {TAP_ROOT / "__pycache__/gate.cpython-311.pyc": b"x"})
    check_applied(applied.path)
    revert(applied.path)


def test_revert_can_be_run_again_after_an_interruption(
    applied: module.AppliedWorktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run_git

    def interrupted(directory: Path, *arguments: str) -> bytes:
        if arguments[:2] == ("worktree", "remove"):
            raise KeyboardInterrupt
        return real(directory, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(module, "run_git", interrupted)
        with pytest.raises(KeyboardInterrupt):
            revert(applied.path)
    revert(applied.path)
    assert not applied.path.exists() and git(applied.repository, "branch", "--list", "auxtap/*") == ""


def test_revert_refuses_what_apply_did_not_make(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "worktree", "add", "--quiet", "-b", "mine", str(tmp_path / "mine"))
    write_files(tmp_path / "plain", shaped_files())
    (tmp_path / "plain/python/wt").mkdir()
    places = [checkout, checkout / "python", tmp_path / "mine", tmp_path / "plain", tmp_path / "nowhere", tmp_path]
    for place in places:
        with pytest.raises(WorktreeError) as caught:
            revert(place, force=True)
        assert caught.value.exit_code == ExitCode.WORKTREE
    assert (tmp_path / "mine" / RUNNER).exists() and (checkout / RUNNER).exists()


def test_a_record_that_cannot_be_read(applied: module.AppliedWorktree) -> None:
    record = Path(git(applied.path, "rev-parse", "--absolute-git-dir")) / RECORD_NAME
    whole = json.loads(record.read_bytes())
    for data in (
        b"",
        b"[]",
        b"{}",
        json.dumps({**whole, "schema": 9}).encode(),
        json.dumps({**whole, "files": 1}).encode(),
    ):
        record.write_bytes(data)
        with pytest.raises(WorktreeError, match="record"):
            read_applied(applied.path)


@pytest.mark.parametrize(
    ("path", "data", "expected"),
    [
        (RUNNER, b"x = 1\n", "is not what auxtap apply left"),
        (TAP_ROOT / "gate.py", None, "is not what auxtap apply left"),
        (PurePosixPath("python/sglang/srt/server_args.py"), b"x = 1\n", "was changed after auxtap apply"),
        (PurePosixPath("python/sglang/srt/new.py"), b"x = 1\n", "was changed after auxtap apply"),
    ],
)
def test_check_refuses_changes(
    applied: module.AppliedWorktree, path: PurePosixPath, data: bytes | None, expected: str
) -> None:
    (applied.path / path).unlink() if data is None else (applied.path / path).write_bytes(data)
    with pytest.raises(WorktreeError, match=expected):
        check_applied(applied.path)


def test_check_refuses_another_commit(applied: module.AppliedWorktree) -> None:
    git(applied.path, "commit", "--quiet", "--allow-empty", "--message=Mine")
    with pytest.raises(WorktreeError, match="is at commit"):
        check_applied(applied.path)


def test_check_allows_other_files(applied: module.AppliedWorktree) -> None:
    (applied.path / "notes.txt").write_text("mine\n")
    check_applied(applied.path)


@pytest.mark.slow
def test_a_worktree_whose_making_was_killed(source: Source, patch_set: PatchSet, tmp_path: Path) -> None:
    """Killed outright, apply can clean nothing up; the worktree cannot be served and revert knows it."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from auxtap.checkout import worktree\n"
        "from auxtap.checkout.source import open_source\n"
        "from auxtap.core.cache import CacheLayout\n"
        "from auxtap.tests.checkout.test_worktree import patch_of\n"
        "worktree._require_commit = lambda applied: os._exit(9)\n"
        "source = open_source(sys.argv[1], CacheLayout(Path(sys.argv[2])))\n"
        "worktree.apply_patch(source, patch_of(source), Path(sys.argv[3]))\n"
    )
    place = tmp_path / "killed"
    arguments = [str(source.repository), str(tmp_path / "cache"), str(place)]
    before = state(source.repository)
    assert subprocess.run([sys.executable, "-c", code, *arguments]).returncode == 9
    with pytest.raises(WorktreeError, match="half made"):
        check_applied(place)
    with pytest.raises(WorktreeError, match="not at the commit"):
        revert(place)
    revert(place, force=True)
    assert not place.exists() and state(source.repository) == before


def test_two_at_once_get_a_branch_each(source: Source, patch_set: PatchSet, tmp_path: Path) -> None:
    """Both choose the same name; git's own lock lets one have it and the other fails cleanly or takes the next."""

    def make(number: int) -> module.AppliedWorktree | None:
        try:
            return apply_patch(source, patch_set, tmp_path / f"wt{number}")
        except AuxtapError:
            return None

    with ThreadPoolExecutor(3) as pool:
        made = [applied for applied in pool.map(make, range(3)) if applied is not None]
    assert made and len({applied.branch for applied in made}) == len(made)
    for applied in made:
        assert check_applied(applied.path) == applied
    assert sorted(path.name for path in tmp_path.glob("wt*")) == sorted(applied.path.name for applied in made)
