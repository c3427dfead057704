"""Folders of runs: each its own, and none left by a run that was killed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from auxtap.checkout.repository import GitError
from auxtap.checkout.source import Source, open_source
from auxtap.checkout.worktree import apply_patch
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import WorktreeError
from auxtap.rewriters.patch.diff import PatchSet, write_patch
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.rewriters.patch.registry import DEFAULT_MODELS
from auxtap.tests.shaped import git, make_checkout, shaped_files
from auxtap.verification.engine import run_folder as module
from auxtap.verification.engine.run_folder import apply_in, run_folder

RUN = """
import sys, time
from pathlib import Path
from auxtap.core.cache import CacheLayout
from auxtap.verification.engine.run_folder import run_folder
with run_folder(CacheLayout(Path(sys.argv[1]))) as folder:
    print(folder, flush=True)
    time.sleep(60)
"""
APPLY = """
import sys
from pathlib import Path
from auxtap.checkout.repository import GitError
from auxtap.checkout.source import open_source
from auxtap.core.cache import CacheLayout
from auxtap.rewriters.patch.diff import write_patch
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.rewriters.patch.registry import DEFAULT_MODELS
from auxtap.verification.engine.run_folder import apply_in, run_folder
cache = CacheLayout(Path(sys.argv[1]))
source = open_source(sys.argv[2], cache)
patch_set = write_patch(source.tree, plan_capture(source.tree, DEFAULT_MODELS, (3, 5)))
with run_folder(cache) as folder:
    apply_in(folder, source, patch_set)
"""


@pytest.fixture
def cache(tmp_path: Path) -> CacheLayout:
    return CacheLayout(tmp_path / "cache")


@pytest.fixture
def source(cache: CacheLayout, tmp_path: Path) -> Source:
    return open_source(str(make_checkout(tmp_path / "sglang", shaped_files())), cache)


@pytest.fixture
def patch_set(source: Source) -> PatchSet:
    return write_patch(source.tree, plan_capture(source.tree, DEFAULT_MODELS, (3, 5)))


def start_run(cache: CacheLayout) -> tuple["subprocess.Popen[str]", Path]:
    process = subprocess.Popen([sys.executable, "-c", RUN, str(cache.root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end_run(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)


def left(cache: CacheLayout) -> list[str]:
    return sorted(os.listdir(cache.root / "verification"))


def test_nothing_is_left_of_a_run(cache: CacheLayout) -> None:
    with run_folder(cache) as folder:
        (folder / "store").mkdir()
        assert len(left(cache)) == 2
    assert left(cache) == []


def test_a_living_run_keeps_its_folder(cache: CacheLayout) -> None:
    process, folder = start_run(cache)
    try:
        with run_folder(cache) as mine:
            assert mine != folder and folder.is_dir()
    finally:
        end_run(process)


def test_what_a_killed_run_left_is_removed_with_its_worktree(
    cache: CacheLayout, source: Source, patch_set: PatchSet
) -> None:
    process, folder = start_run(cache)
    applied = apply_in(folder, source, patch_set)
    end_run(process)
    assert folder.is_dir()
    with run_folder(cache) as mine:
        assert not folder.exists()
        # The same branch again: nothing of the dead run's stands in its way.
        assert apply_in(mine, source, patch_set).branch == applied.branch
    assert git(source.repository, "branch", "--list", "auxtap/*") == "" and left(cache) == []


def test_a_run_that_was_killed_while_git_made_its_worktree_leaves_nothing(
    cache: CacheLayout, source: Source, patch_set: PatchSet, tmp_path: Path
) -> None:
    # A filter holds git up in the middle of writing the files.
    (tmp_path / "slow").write_text(f"#!/bin/sh\ntouch {tmp_path}/reached\nsleep 60\n")
    (tmp_path / "slow").chmod(0o700)
    git(source.repository, "config", "filter.slow.smudge", str(tmp_path / "slow"))
    (source.repository / ".git/info").mkdir(exist_ok=True)
    (source.repository / ".git/info/attributes").write_text("*.py filter=slow\n")
    process = subprocess.Popen(
        [sys.executable, "-c", APPLY, str(cache.root), str(source.repository)], start_new_session=True
    )
    while not (tmp_path / "reached").exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    assert "locked" in git(source.repository, "worktree", "list", "--porcelain")
    with run_folder(cache) as mine:
        assert left(cache) == [mine.name, f"{mine.name}.lock"]
    assert git(source.repository, "branch", "--list", "auxtap/*") == ""
    assert git(source.repository, "worktree", "list", "--porcelain").count("worktree ") == 1


def test_a_run_whose_repository_is_gone_is_removed(cache: CacheLayout, source: Source, patch_set: PatchSet) -> None:
    process, folder = start_run(cache)
    apply_in(folder, source, patch_set)
    end_run(process)
    shutil.rmtree(source.repository)
    with run_folder(cache):
        assert not folder.exists()


def test_a_living_run_says_that_its_worktree_stays(
    cache: CacheLayout, source: Source, patch_set: PatchSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(repository: Path, worktree: Path) -> None:
        raise GitError(("worktree",), 1, "no")

    with (
        monkeypatch.context() as broken,
        pytest.raises(WorktreeError, match="could not remove"),
        run_folder(cache) as mine,
    ):
        apply_in(mine, source, patch_set)
        broken.setattr(module, "discard", fail)
    with run_folder(cache):
        assert not mine.exists()


def test_a_worktree_whose_branch_is_gone_is_in_nobodys_way(source: Source, patch_set: PatchSet, tmp_path: Path) -> None:
    # What is left when a removal is killed between the branch and the worktree.
    first = apply_patch(source, patch_set, tmp_path / "one")
    git(source.repository, "update-ref", "-d", f"refs/heads/{first.branch}")
    second = apply_patch(source, patch_set, tmp_path / "two")
    assert second.branch == f"{first.branch}-2"
