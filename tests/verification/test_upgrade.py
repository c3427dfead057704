"""One verdict for a new release, on small checkouts in SGLang's shape."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from auxtap.checkout.source import Source, open_source
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import PatchError
from auxtap.core.source_tree import SRT_ROOT
from auxtap.rewriters.patch.registry import DEFAULT_MODELS
from auxtap.tests.shaped import COLLECTOR, COLLECTORS, LLAMA, LOGITS, RUNNER, fixture, make_checkout, shaped_files
from auxtap.verification.releases.upgrade import UpgradeReport, compare_releases

SERVER_ARGS = SRT_ROOT / "server_args.py"


@pytest.fixture
def opened(tmp_path: Path):
    count = iter(range(100))

    def make(changed: Mapping[PurePosixPath, bytes] | None = None) -> Source:
        root = make_checkout(tmp_path / f"tree{next(count)}", shaped_files(changed))
        return open_source(str(root), CacheLayout(tmp_path / "cache"))

    return make


def compare(old: Source, new: Source) -> UpgradeReport:
    return compare_releases(old, new, DEFAULT_MODELS, (3,))


def test_the_same_tree_is_the_same_plan(opened) -> None:
    report = compare(opened(), opened())
    assert (report.outcome, report.changes) == ("same plan", ())
    assert "checks hold; static only" in report.reason and report.proved is not None


def test_other_lines_are_no_change(opened) -> None:
    moved = b"# A new line.\n" + fixture("arm", "plain.before")
    assert compare(opened(), opened({RUNNER: moved})).outcome == "same plan"


def test_a_moved_place_a_new_hazard_and_other_sites_are_told(opened) -> None:
    arguments = shaped_files()[SERVER_ARGS] + b"    disable_piecewise_cuda_graph: bool = False\n"
    changed = {
        RUNNER: fixture("arm", "own_method.before"),
        SERVER_ARGS: arguments,
        LLAMA: fixture("stage", "handed_in.before"),
        COLLECTORS: COLLECTOR,
    }
    report = compare(opened(), opened(changed))
    assert report.outcome == "plan changed and proved"
    found = {(change.topic, change.what): (change.before, change.after) for change in report.changes}
    before, after = found["place", "arm in model_runner.py"]
    assert "ModelRunner.initialize" in before and "init_aux_hidden_state_capture" in after
    assert found["hazard", "recorded_prefill"] == ("", "flag --disable-piecewise-cuda-graph")
    assert "--disable-piecewise-cuda-graph" in found["server flags", "auxtap serve passes"][1]
    assert any(topic == "sites" and "llama.py" in what for topic, what in found)


def test_a_place_that_is_gone_needs_a_person(opened) -> None:
    report = compare(opened(), opened({LOGITS: fixture("tap", "late.refused")}))
    assert (report.outcome, report.proved) == ("needs a person", None)
    assert report.reason.startswith("tap: no single anchor")


def test_an_old_release_without_a_plan_compares_nothing(opened) -> None:
    with pytest.raises(PatchError):
        compare(opened({LOGITS: fixture("tap", "late.refused")}), opened())
