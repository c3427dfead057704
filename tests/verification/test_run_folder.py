"""Folders of runs: each its own, and none left by a run that was killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from auxtap.checkout.source import Source, open_source
from auxtap.checkout.worktree import apply_patch
from auxtap.core.cache import CacheLayout
from auxtap.rewriters.diff import PatchSet, write_patch
from auxtap.rewriters.plan import plan_capture
from auxtap.rewriters.registry import DEFAULT_MODELS
from auxtap.tests.shaped import git, make_checkout, shaped_files
from auxtap.verification.run_folder import TREE, run_folder

RUN = """
import sys, time
from pathlib import Path
from auxtap.core.cache import CacheLayout
from auxtap.verification.run_folder import run_folder
with run_folder(CacheLayout(Path(sys.argv[1]))) as folder:
    print(folder, flush=True)
    time.sleep(60)
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
    applied = apply_patch(source, patch_set, folder / TREE)
    end_run(process)
    assert folder.is_dir()
    with run_folder(cache) as mine:
        assert not folder.exists()
        # The same branch again: nothing of the dead run's stands in its way.
        assert apply_patch(source, patch_set, mine / TREE).branch == applied.branch
    assert git(source.repository, "branch", "--list", "auxtap/*") == "" and left(cache) == []


def test_a_worktree_whose_branch_is_gone_is_in_nobodys_way(source: Source, patch_set: PatchSet, tmp_path: Path) -> None:
    # What is left when a removal is killed between the branch and the worktree.
    first = apply_patch(source, patch_set, tmp_path / "one")
    git(source.repository, "update-ref", "-d", f"refs/heads/{first.branch}")
    second = apply_patch(source, patch_set, tmp_path / "two")
    assert second.branch == f"{first.branch}-2"
