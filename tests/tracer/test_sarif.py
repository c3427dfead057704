"""SARIF for editors and CI: the structure that 2.1.0 asks for, and that nothing which needs attention is left out."""

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from auxtap import cli
from auxtap.commands.views.trace_sarif import ROOT, sarif_of
from auxtap.core.source_tree import MODELS_ROOT, SourceTree
from auxtap.tracer.report.trace_report import TraceReport
from auxtap.tracer.tracing import trace_tree

DROPS = b"""
class Backbone(nn.Module):
    def forward(self, hidden_states, residual):
        aux_hidden_states = []
        for i in range(self.start_layer, self.end_layer):
            if i in self.layers_to_capture:
                aux_hidden_states.append(hidden_states + residual)
            hidden_states, residual = self.layers[i](hidden_states, residual)
        if not self.pp_group.is_last_rank:
            return PPProxyTensors({"hidden_states": hidden_states})
        mystery(aux_hidden_states)[0] += 1
        return hidden_states, aux_hidden_states

EntryClass = Backbone
"""
LEVELS = {"error", "warning", "note", "none"}


def report_of(name: str = "odd one.py", source: bytes = DROPS) -> TraceReport:
    files = {MODELS_ROOT / name: source, MODELS_ROOT / "broken.py": b"aux_hidden_states = (\n"}
    return trace_tree(SourceTree("0.0", "here", "0" * 40, files), everything=True)


def check_log(log: dict[str, Any]) -> None:
    """Hold a log against what SARIF 2.1.0 requires of the parts that are used."""
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert isinstance(driver["name"], str) and driver["rules"]
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"] and rule["defaultConfiguration"]["level"] in LEVELS
    assert set(run["originalUriBaseIds"]) == {ROOT}
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"] and result["level"] in LEVELS
        assert result["message"]["text"]
        numbers = [each["id"] for each in result.get("relatedLocations", ())]
        assert numbers == list(range(1, len(numbers) + 1))
        for location in (*result["locations"], *result.get("relatedLocations", ())):
            physical = location["physicalLocation"]
            artifact = physical["artifactLocation"]
            assert artifact["uriBaseId"] == ROOT and physical["region"]["startLine"] >= 1
            assert not artifact["uri"].startswith("/") and ".." not in artifact["uri"] and " " not in artifact["uri"]


def test_what_needs_attention_is_there_with_its_lines() -> None:
    report = report_of()
    log = json.loads(json.dumps(sarif_of(report, "1.2.3")))
    check_log(log)
    results = log["runs"][0]["results"]
    found = {result["ruleId"] for result in results}
    assert {"unknown-site", "stage-drop", "unread-file"} <= found
    hazards = {result["ruleId"] for result in results if result["ruleId"].startswith("hazard/")}
    assert hazards == {f"hazard/{hazard.name}" for hazard in report.hazards}
    (drop,) = [result for result in results if result["ruleId"] == "stage-drop"]
    place = drop["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "python/sglang/srt/models/odd%20one.py"
    assert (
        place["physicalLocation"]["region"]["startLine"]
        == DROPS.decode().split("\n").index("        if not self.pp_group.is_last_rank:") + 1
    )
    assert place["logicalLocations"] == [{"fullyQualifiedName": "Backbone.forward"}]


def test_a_tree_with_nothing_to_say_is_a_whole_log() -> None:
    log = sarif_of(
        trace_tree(SourceTree("0.0", "here", "0" * 40, {PurePosixPath("a.py"): b"x = 1\n"}), everything=True), "1"
    )
    check_log(log)
    assert log["runs"][0]["results"] == []


def test_the_command_writes_it_to_a_file_or_to_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUXTAP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/odd.py").write_bytes(DROPS)
    written = tmp_path / "out/trace.sarif"
    # The tree has a site that nothing recognises: that is told as ever.
    assert cli.run(["trace", str(tmp_path / "tree"), "--folder", "--sarif", str(written)]) == 1
    assert capsys.readouterr().out == ""
    assert cli.run(["trace", str(tmp_path / "tree"), "--folder", "--sarif", "-"]) == 1
    printed = json.loads(capsys.readouterr().out)
    check_log(printed)
    assert printed == json.loads(written.read_text())
    for odd in (["--json"], ["--against", str(tmp_path / "tree")]):
        assert cli.run(["trace", str(tmp_path / "tree"), "--folder", "--sarif", "-", *odd]) == 2
    assert cli.run(["trace", str(tmp_path / "tree"), "--folder", "--sarif", str(tmp_path)]) == 2
