"""`auxtap sweep`, `auxtap upgrade` and `auxtap patch --classes`, on real releases and on small checkouts."""

import json
from pathlib import Path

import pytest

from auxtap import cli
from auxtap.core.errors import ExitCode
from auxtap.tests.shaped import LOGITS, fixture, make_checkout, shaped_files


@pytest.mark.slow
@pytest.mark.network
def test_a_sweep_writes_each_patch_in_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.run(["sweep", "0.4.5..0.4.5.post1", "--out", str(out), "--json"]) == ExitCode.DONE
    record = json.loads(capsys.readouterr().out)
    assert [entry["release"] for entry in record["releases"]] == ["0.4.5", "0.4.5.post1"]
    assert all(entry["holds"] and len(entry["passed"]) == 15 for entry in record["releases"])
    assert {place["kind"] for place in record["releases"][0]["places"]} == {"arm", "attach", "note", "tap"}
    assert sorted(path.name for path in out.iterdir()) == ["sglang-0.4.5", "sglang-0.4.5.post1", "tables"]
    assert cli.run(["verify", str(out / "sglang-0.4.5")]) == ExitCode.DONE
    assert sorted(path.name for path in (out / "sglang-0.4.5").iterdir()) == ["inserted.patch", "manifest.json"]


@pytest.fixture
def trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUXTAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    make_checkout(tmp_path / "old")
    make_checkout(tmp_path / "new", shaped_files({LOGITS: fixture("tap", "cleared_names.before")}))
    make_checkout(tmp_path / "odd", shaped_files({LOGITS: fixture("tap", "late.refused")}))
    return tmp_path


def test_an_upgrade_ends_with_one_verdict(trees: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["upgrade", "--from", "old", "--to", "new", "--out", "out", "--json"]) == ExitCode.DONE
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] in ("same plan", "plan changed and proved")
    assert Path(record["patch"]).is_file()


def test_an_upgrade_that_needs_a_person_writes_nothing(trees: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["upgrade", "--from", "old", "--to", "odd", "--out", "out"]) == ExitCode.CHECK_FAILED
    shown = capsys.readouterr()
    assert "needs a person" in shown.out and "tap: no single anchor" in shown.err
    assert not (trees / "out").exists()


def test_classes_are_listed(trees: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["patch", "old", "--classes", "--json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["release"] == "0.5.9"
    assert not (trees / "generated").exists()
