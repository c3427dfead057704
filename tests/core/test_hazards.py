"""The table of hazards: that every reader takes every row from it, and that its rows are whole."""

import json
from pathlib import Path

import pytest

from auxtap.core.hazards.arguments import find_refusal
from auxtap.core.hazards.hazard_table import all_hazards
from auxtap.core.hazards.row import Hazard
from auxtap.tests.core.hazard_readers import check_every_reader, decisions, reported, serve_says, tap_says
from auxtap.tests.tracer.test_hazards import EDITS
from auxtap.tracer.hazards.hazard_finder import FILE_FINDERS, TREE_FINDERS

ROWS = all_hazards()
MANIFESTS = Path(__file__).resolve().parents[2] / "generated"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_reader_knows_the_row(row: Hazard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_every_reader(row, tmp_path, monkeypatch)
    assert row.refused or row.needed or row.cleared or row.remedy or row.name in FILE_FINDERS


def test_the_report_shows_a_row_by_its_finder_or_by_its_arguments() -> None:
    """Finders are proved on real sources, each with an edit that takes its cause away; the others on a small tree."""
    finders = {*FILE_FINDERS, *TREE_FINDERS}
    assert finders <= {row.name for row in ROWS}
    assert finders == {edit.hazard for edit in EDITS} | {"byte_order_mark", "skipped_layers"}
    for row in ROWS:
        if row.name not in finders:
            found = reported(*row.arguments)[row.name]
            assert (found.text, found.trigger, found.settings) == (row.reason, row.trigger, row.arguments)
            assert [item.code.split(":")[0] for item in found.evidence] == list(row.arguments)
            assert found.avoid.startswith("start without --")


def test_a_release_without_the_arguments_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decisions() == []
    assert tap_says(monkeypatch) == ""
    assert not {row.name for row in ROWS if row.name not in {*FILE_FINDERS, *TREE_FINDERS}} & set(reported())


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--tp", "8", "--enable-dp-attention", "--dp-size", "8"),
        ("--moe-a2a-backend", "none", "--attn-dp-size", "8"),
        ("--moe-a2a-backend", "deepep", "--attn-dp-size", "1"),
        ("--dcp-size", "1", "--dcp-size=01"),
        ("--cuda-graph-backend-decode", "full"),
        ("--cuda-graph-config", json.dumps({"prefill": {"backend": "disabled", "bs": [4]}})),
        ("--cuda-graph-config=null",),
        ("--enable-mixed-chunk", "--chunked-prefill-size", "-1"),
        ("--disable-prefill-cuda-graph", "--enforce-disable-flashinfer-allreduce-fusion"),
        ("--enable-dp-attention-local-control-broadcast", "--moe-a2a-backend", "deepep"),
    ],
)
def test_what_is_no_hazard_passes(words: tuple[str, ...]) -> None:
    assert serve_says(words) == ""


@pytest.mark.parametrize(
    ("words", "taken_for"),
    [
        (("--dcp-size", "1", "--dcp-size", "2"), "--dcp-size 2"),
        (("--dcp-size", "2", "--dcp-size", "1"), "--dcp-size 2"),
        (("--dcp", "+8"), "--dcp +8 (taken for --dcp-size)"),
        (("--cuda-graph-config", "no json"), "--cuda-graph-config no json"),
        (("--cuda-graph-config", '{"prefill": {"backend": "Full"}}'), "--cuda-graph-config"),
        (("--disaggregation-mode",), "--disaggregation-mode"),
        (("--enable-dp-att", "--moe-a2a-b=nixl"), "--moe-a2a-b nixl (taken for --moe-a2a-backend) together with"),
        (("--conf", "x.yaml"), "--conf"),
        (("--smg-grpc",), "--smg-grpc"),
    ],
)
def test_what_a_parser_would_take_for_a_hazard_is_one(words: tuple[str, ...], taken_for: str) -> None:
    assert serve_says(words).startswith(f"server argument {taken_for}")


def test_without_a_hook_a_compiled_decode_is_none() -> None:
    assert find_refusal(("--enable-torch-compile",)) is None
    assert find_refusal(("--enable-torch-compile",), prenorm=True) is not None


def test_no_option_of_a_row_begins_another_of_a_release() -> None:
    """A beginning of a refused option is refused, so no release may have a whole option that is one."""
    refused = {option for row in ROWS for group in row.refused for switch in group for option in switch.options}
    assert {option for option in refused for other in refused if other != option and other.startswith(option)} == {
        "--speculative-draft-model"
    }
