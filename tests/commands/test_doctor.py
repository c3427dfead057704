"""What `auxtap doctor` finds on machines that lack something."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from auxtap import cli
from auxtap.commands import surroundings
from auxtap.core.cache import CacheLayout
from auxtap.node.checks import FAIL, OK, WARN, CheckLine


def lines_of(cache: Path) -> Mapping[str, CheckLine]:
    return {line.name: line for line in surroundings.examine(CacheLayout(cache), online=False)}


def test_an_empty_cache(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "none")
    assert lines["git"].verdict == lines["python"].verdict == OK
    assert lines["engines"].verdict == WARN and "auxtap engine setup" in lines["engines"].remedy
    assert lines["cache"].detail == f"{tmp_path / 'none'}: 0 source trees"
    assert not (tmp_path / "none").exists()


def test_an_engine_is_found_by_its_marker(tmp_path: Path) -> None:
    for name in ("sglang-0.5.9-py3.11", "half"):
        (tmp_path / "engines" / name).mkdir(parents=True)
    (tmp_path / "engines/sglang-0.5.9-py3.11/auxtap-engine.json").touch()
    assert lines_of(tmp_path)["engines"].detail == "sglang-0.5.9-py3.11"


def test_no_git_is_a_failure(tmp_path: Path) -> None:
    done = run_doctor(tmp_path, PATH=str(tmp_path))
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert not found["ready"]
    (git,) = (check for check in found["checks"] if check["check"] == "git")
    assert (git["verdict"], git["remedy"]) == (FAIL, "install git")
    (ssh,) = (check for check in found["checks"] if check["check"] == "ssh")
    assert ssh["verdict"] == WARN
    assert done.stderr == "error: git: auxtap cannot work like this\nhint: the remedy is above\n"


def test_an_old_git_is_a_failure(tmp_path: Path) -> None:
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\necho git version 2.11.0\n")
    program.chmod(0o755)
    done = run_doctor(tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert "git version 2.11.0: too old" in done.stdout


def run_doctor(cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from auxtap.cli import main; main()", "doctor", "--json"]
    variables = {**os.environ, "AUXTAP_CACHE": str(cache / "cache"), **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True)


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "ENGINE_BYTES", 1 << 60)
    assert lines_of(tmp_path)["disk"].verdict == WARN


def test_extras_that_are_missing_name_their_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "_EXTRAS", ((("no_such_package", "json"), "pt", "what needs it"),))
    line = lines_of(tmp_path)["pt"]
    assert (line.verdict, line.detail, line.remedy) == (
        WARN,
        "no no_such_package: what needs it",
        "pip install 'auxtap[pt]'",
    )


def test_a_broken_index_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "PIP_INDEX_URL"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    lines = {line.name: line for line in surroundings.examine(CacheLayout(tmp_path), online=True)}
    assert lines["index"].verdict == WARN and "ConnectError" in lines["index"].detail


def test_for_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AUXTAP_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert cli.run(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("ok   python     3.")
