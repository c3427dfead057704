"""One verdict for a new release, on small checkouts in SGLang's shape."""

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from auxtap import cli
from auxtap.checkout.source import Source, open_source
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import ExitCode, PatchError
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


HEAD = b"""

class LlamaForCausalLM:
    def __init__(self):
        self.model = LlamaModel()
        self.capture_aux_hidden_states = False

    def set_eagle3_layers_to_capture(self, layer_ids):
        self.capture_aux_hidden_states = True
        self.model.layers_to_capture = [val + 1 for val in layer_ids]


EntryClass = LlamaForCausalLM
"""
BACKBONE = fixture("stage", "if_else.before")


def test_a_class_that_is_lost_and_ids_that_mean_other_layers_decide(opened) -> None:
    assert b"class LlamaModel" in BACKBONE
    old = opened({LLAMA: BACKBONE + HEAD})
    assert compare(old, opened({LLAMA: BACKBONE + HEAD})).outcome == "same plan"
    report = compare(old, opened({LLAMA: BACKBONE + HEAD.replace(b"val + 1", b"val")}))
    assert report.outcome == "plan changed and proved" and report.changes[0].decides
    found = {(change.topic, change.what): change for change in report.changes}
    ids = found["draft-config ids", "LlamaForCausalLM.set_eagle3_layers_to_capture"]
    assert (ids.before, ids.after, ids.decides) == ("ids + 1", "ids", True)
    odd = BACKBONE.replace(b" in self.layers_to_capture", b" + 1 in self.layers_to_capture")
    report = compare(old, opened({LLAMA: odd + HEAD}))
    assert report.outcome == "needs a person"


def test_a_class_that_is_refused_is_told_with_its_reason_and_a_new_one_decides_nothing(opened) -> None:
    other = (BACKBONE + HEAD).replace(b"Llama", b"Other")
    path = LLAMA.with_name("other.py")
    report = compare(opened(), opened({path: other}))
    assert report.outcome == "same plan"
    assert [change.what for change in report.changes if change.topic == "class"] == ["OtherForCausalLM"]
    lost = other.replace(b" in self.layers_to_capture", b" + 1 in self.layers_to_capture")
    report = compare(opened({path: other}), opened({path: lost}))
    (change,) = [change for change in report.changes if change.topic == "class"]
    assert report.outcome == "plan changed and proved" and change.decides
    assert change.before == "captured, chosen by SGLang's own setter" and change.after.startswith("refused: ")


def test_nothing_left_of_a_model_needs_a_person_and_is_a_refusal(opened) -> None:
    gone = BACKBONE.replace(b" in self.layers_to_capture", b" + 1 in self.layers_to_capture") + HEAD
    report = compare_releases(opened({LLAMA: BACKBONE + HEAD}), opened({LLAMA: gone}), ("llama",), (3,))
    assert report.outcome == "needs a person"
    assert "models/llama.py (LlamaModel.forward)" in report.reason and "number of the next block" in report.reason


def test_a_model_that_was_never_captured_leaves_nothing_to_compare(opened) -> None:
    gone = {LLAMA: BACKBONE.replace(b" in self.layers_to_capture", b" + 1 in self.layers_to_capture") + HEAD}
    with pytest.raises(PatchError, match="number of the next block"):
        compare(opened(gone), opened(gone))


@pytest.mark.parametrize(("named", "code"), [(True, ExitCode.PATCH), (False, ExitCode.CHECK_FAILED)])
def test_the_command_says_the_verdict_first_and_ends_with_4_for_a_named_model(
    named: bool, code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUXTAP_CACHE", str(tmp_path / "cache"))
    gone = BACKBONE.replace(b" in self.layers_to_capture", b" + 1 in self.layers_to_capture") + HEAD
    make_checkout(tmp_path / "a", shaped_files({LLAMA: BACKBONE + HEAD}))
    make_checkout(tmp_path / "b", shaped_files({LLAMA: gone}))
    command = ["upgrade", "--from", str(tmp_path / "a"), "--to", str(tmp_path / "b"), "--out", str(tmp_path / "out")]
    command += ["--model", "llama"] if named else []
    assert cli.run(command) == code
    shown = capsys.readouterr().out
    assert shown.startswith("0.5.9 to 0.5.9: needs a person: ")
    assert shown.index("needs a person") < shown.index("What decides it")
    assert not named or not (tmp_path / "out").exists()
    assert cli.run([*command, "--json"]) == code
    record = json.loads(capsys.readouterr().out)
    assert record["changes"][0]["topic"] == "class" and record["changes"][0]["decides"]


def test_a_place_that_is_gone_needs_a_person(opened) -> None:
    report = compare(opened(), opened({LOGITS: fixture("tap", "late.refused")}))
    assert (report.outcome, report.proved) == ("needs a person", None)
    assert report.reason.startswith("tap: no single anchor")


def test_an_old_release_without_a_plan_compares_nothing(opened) -> None:
    with pytest.raises(PatchError):
        compare(opened({LOGITS: fixture("tap", "late.refused")}), opened())
