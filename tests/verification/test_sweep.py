"""Ranges of releases, the page, and how hand-kept hunks fare."""

import shutil

import pytest

from auxtap.core.errors import UsageError
from auxtap.rewriters.patch.diff import PatchSet, write_patch
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.rewriters.patch.registry import DEFAULT_MODELS
from auxtap.tests.shaped import BATCH, LLAMA, RUNNER, fixture, shaped_tree
from auxtap.verification.proof.proof_level import ProofLevel, ProvedCase
from auxtap.verification.releases.compatibility import compatibility_page
from auxtap.verification.releases.hunk_rot import HunkRot, measure_rot
from auxtap.verification.releases.sweep import Place, ReleaseResult, chosen_releases

needs_patch = pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch(1)")


def test_every_release_of_the_lock_table() -> None:
    releases = chosen_releases(None)
    assert (releases[0], releases[-1], len(releases)) == ("0.4.5", "0.5.23", 66)
    assert chosen_releases("all") == releases


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("0.5.9", ("0.5.9",)),
        ("0.5.8..0.5.9", ("0.5.8", "0.5.8.post1", "0.5.9")),
        ("0.5.22..", ("0.5.22", "0.5.23")),
        ("..0.4.5.post1", ("0.4.5", "0.4.5.post1")),
        ("0.5.10,0.5.9", ("0.5.9", "0.5.10")),
    ],
)
def test_ranges(text: str, chosen: tuple[str, ...]) -> None:
    assert chosen_releases(text) == chosen


@pytest.mark.parametrize("text", ["", "..", "9.9", "0.5.9..0.5.8", "0.5.9,9.9"])
def test_refused_ranges(text: str) -> None:
    with pytest.raises(UsageError):
        chosen_releases(text)


def written() -> PatchSet:
    tree = shaped_tree()
    return write_patch(tree, plan_capture(tree, DEFAULT_MODELS, (3,)))


@needs_patch
def test_a_patch_fares_well_on_its_own_release() -> None:
    assert measure_rot(written(), shaped_tree()) == HunkRot(0, 10)


@needs_patch
def test_hunks_are_lost_where_their_neighbourhood_changed_and_where_the_file_is_gone() -> None:
    changed = fixture("note", "plain.before").replace(b"device = runner.device", b"device = runner.chosen")
    lost = measure_rot(written(), shaped_tree({BATCH: changed}))
    assert lost is not None and 1 <= lost.failed < lost.total
    tree = shaped_tree()
    without = {path: data for path, data in tree.files.items() if path != LLAMA}
    gone = measure_rot(written(), type(tree)(tree.release, tree.origin, tree.commit, without))
    assert gone is not None and gone.failed >= 2


def test_no_program_no_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert measure_rot(written(), shaped_tree()) is None


ARM = Place("arm", RUNNER.name, "ModelRunner.initialize", 10)
PROVED = ProofLevel("engine-proved", (ProvedCase("llama", "pp2", 4, 1130, 1.2e-6),), "")
RESULTS = (
    ReleaseResult("0.5.8", 1.0, 5, 10, (ARM,), ("radix cache: flag",), ("--disable-radix-cache",), ("applies",)),
    ReleaseResult("0.5.9", 2.0, 5, 10, (ARM,), passed=("applies",), level=PROVED, rot=HunkRot(3, 10)),
    ReleaseResult("0.5.10", 3.0, problem="arm: no single anchor", rot=HunkRot(4, 10)),
    ReleaseResult("0.5.11", 3.0, 5, 10, (Place("arm", RUNNER.name, "ModelRunner.other", 3),), rejected=("parses: no",)),
)


def test_the_page_says_what_became_of_each_release() -> None:
    page = compatibility_page(RESULTS, DEFAULT_MODELS)
    assert "2 of 4 releases have a patch whose checks hold; 1 are engine-proved" in page
    assert "7 of 20 hunks fail on the next release" in page
    assert "| 0.5.9 | 5 | 10 | arm | 0 |  | 1 of 1 | engine-proved | 3 of 10 |" in page
    assert "| 0.5.10 |  |  | refused: arm: no single anchor |" in page
    assert "| 0.5.9 | llama | pp2 | 4 | 1130 | 1.2e-06 |" in page
    assert "`ModelRunner.initialize` 0.5.8 to 0.5.9; `ModelRunner.other` 0.5.11" in page
    assert page == compatibility_page(RESULTS, DEFAULT_MODELS)


def test_the_page_holds_no_time() -> None:
    later = [ReleaseResult("0.5.8", seconds, 5, 10) for seconds in (1.0, 9.0)]
    assert len({compatibility_page([result], DEFAULT_MODELS) for result in later}) == 1
