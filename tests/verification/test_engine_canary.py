"""The canary on real servers: what it says of right states, and which faults it sees without a reference."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from auxtap.extraction.canary.run import CanaryReport, CanaryTarget, run_canary
from auxtap.extraction.run.job import ServerPlace
from auxtap.serving.profile import LaunchSpec
from auxtap.verification.engine.engine_run import write_dataset
from auxtap.verification.engine.engine_settings import RANK_FLAGS, STAGE_FLAGS
from auxtap.verification.engine.fork_server import ForkServer

pytestmark = pytest.mark.engine
SpecMaker = Callable[..., LaunchSpec]
INJECT = Path(__file__).with_name("inject_fault_script.py")
CHUNKS = ("--chunked-prefill-size", "16")


def canary(fork_server: ForkServer, spec: LaunchSpec, fault: str | None = None) -> CanaryReport:
    assert spec.spool is not None
    target = CanaryTarget(ServerPlace(spec.url, (spec.spool,)), timeout_s=120, parts_timeout_s=3)
    with fork_server.serve(spec, first=None if fault is None else INJECT) as server:
        server.wait_ready(timeout_s=120)
        return run_canary(target, 5)


def outcomes(report: CanaryReport) -> dict[str, str]:
    return {check.name: check.outcome for check in report.checks}


ALL_OK = dict.fromkeys(("rows", "batches", "chunks", "logits", "growth", "distinct", "again"), "ok")


@pytest.mark.parametrize(
    ("model", "arguments", "differing"),
    [
        ("llama", CHUNKS, {"ranks": "skipped"}),
        ("llama", (*RANK_FLAGS, *STAGE_FLAGS, *CHUNKS), {"ranks": "ok"}),
        ("kimi_k25", RANK_FLAGS, {"ranks": "ok", "chunks": "skipped"}),
    ],
)
def test_right_states_pass(
    fork_server: ForkServer, make_spec: SpecMaker, model: str, arguments: tuple[str, ...], differing: dict[str, str]
) -> None:
    report = canary(fork_server, make_spec(model, extra_arguments=arguments))
    assert outcomes(report) == {**ALL_OK, "embedding": "skipped", "norm": "skipped", **differing}, report.checks
    assert report.holds
    assert not [name for name in os.listdir(make_spec().spool or "") if name.endswith(".witness")]


# (fault, arguments of the server, the check that fails, what it says)
FAULTS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("unreduced_partial_sum", RANK_FLAGS, "ranks", "not reduced?"),
    ("pre_norm", (), "logits", "pre-norm?"),
    ("aliased_storage", (), "distinct", "are the same state"),
    ("missing_residual", (), "growth", "hidden."),
    ("neighbours_states", (), "batches", "row"),
    ("neighbours_rows", (), "rows", "states of another prompt"),
    ("unwritten_chunk", CHUNKS, "chunks", "row"),
    ("lost_chunk", CHUNKS, "rows", "parts are begun"),
    ("nan", (), "rows", "NaN"),
    ("truncated_file", (), "rows", "bytes, not"),
)


@pytest.mark.parametrize(("fault", "arguments", "failing", "text"), FAULTS)
def test_faults_that_need_no_reference_are_seen(
    fork_server: ForkServer, make_spec: SpecMaker, fault: str, arguments: tuple[str, ...], failing: str, text: str
) -> None:
    spec = make_spec(extra_arguments=arguments, extra_environment={"INJECTED_FAULT": fault})
    report = canary(fork_server, spec, fault)
    assert not report.holds
    details = {check.name: check.detail for check in report.checks if check.outcome == "failed"}
    assert failing in details, report.checks
    assert text in details[failing]


def test_the_commands_exit_8_name_the_check_and_start_no_mass_run(
    fork_server: ForkServer, make_spec: SpecMaker, tmp_path: Path
) -> None:
    spec = make_spec(extra_environment={"INJECTED_FAULT": "pre_norm"})
    where = ["--server", spec.url, "--spool", str(spec.spool)]
    dataset = write_dataset(tmp_path / "data.jsonl", (9, 30, 4, 12))
    with fork_server.serve(spec, first=INJECT) as server:
        server.wait_ready(timeout_s=120)
        done = auxtap("canary", *where, "--prompts", "2", "--json")
        mass = auxtap("extract", str(dataset), *where, "--out", str(tmp_path / "store"))
        without = auxtap("extract", str(dataset), *where, "--out", str(tmp_path / "unchecked"), "--canary", "0")
    assert done.returncode == 8, done.stderr
    assert not json.loads(done.stdout)["holds"]
    assert f"error: the canary on {spec.url} failed: logits" in done.stderr
    assert mass.returncode == 8, mass.stderr
    assert "pre-norm?" in mass.stderr
    assert not (tmp_path / "store").exists()
    assert without.returncode == 0, without.stderr


def auxtap(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "auxtap.cli", *arguments], capture_output=True, text=True)


def test_extract_sends_a_canary_first(fork_server: ForkServer, make_spec: SpecMaker, tmp_path: Path) -> None:
    spec = make_spec()
    dataset = write_dataset(tmp_path / "data.jsonl", (9, 30, 4, 12))
    with fork_server.serve(spec) as server:
        server.wait_ready(timeout_s=120)
        done = auxtap(
            *("extract", str(dataset), "--server", spec.url, "--spool", str(spec.spool)),
            *("--out", str(tmp_path / "store"), "--json"),
        )
    assert done.returncode == 0, done.stderr
    assert f"canary on {spec.url}: rows, batches, logits, growth, distinct, again are right" in done.stderr
    assert json.loads(done.stdout)["stored"] == 4
