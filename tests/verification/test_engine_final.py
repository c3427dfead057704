"""The final state before and after the norm, by real servers: held against transformers, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from auxtap.core.cache import CacheLayout
from auxtap.core.errors import ServerError
from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.canary.run import CanaryTarget, run_canary
from auxtap.extraction.canary.state_checks import check_norm
from auxtap.extraction.canary.stored_states import PromptStates
from auxtap.extraction.run.job import ServerPlace
from auxtap.extraction.store.reader import StoreReader
from auxtap.serving.engine_env import EngineEnvironment
from auxtap.serving.profile import LaunchSpec
from auxtap.verification.engine.engine_cases import EngineCase
from auxtap.verification.engine.engine_proof import compare_runs
from auxtap.verification.engine.engine_run import run_case
from auxtap.verification.engine.engine_settings import RANK_FLAGS, SETTINGS
from auxtap.verification.engine.fork_server import ForkServer
from auxtap.verification.engine.tiny_models import make_tiny_models

pytestmark = pytest.mark.engine
SpecMaker = Callable[..., LaunchSpec]
CASES = (
    EngineCase("llama", "both_finals"),
    EngineCase("llama", "pre_norm"),
    EngineCase("llama", "pp2_both_finals"),
    EngineCase("kimi_k25", "both_finals"),
)


def test_both_final_states_equal_the_references(
    fork_server: ForkServer,
    template: LaunchSpec,
    engine: EngineEnvironment,
    shared_cache: CacheLayout,
    tmp_path: Path,
) -> None:
    models = {m.name: m for m in make_tiny_models(("llama", "kimi_k25"), engine, shared_cache)}
    here = replace(template, log=tmp_path / "server.log")
    runs = [run_case(case, models[case.model], fork_server, here, tmp_path, lambda _: None) for case in CASES]
    for run, result in zip(runs, compare_runs(runs, engine.python, template.release), strict=True):
        assert result.problem is None, result.problem
        assert [cell.state for cell in result.cells] == list(SETTINGS[run.case.setting].states)
        assert result.holds, result.cells
        report = check_store(run.pair.store)
        assert (report.findings, report.missing) == ((), 0)
        manifest = StoreReader(run.pair.store).manifest
        assert manifest.final == SETTINGS[run.case.setting].final
        assert manifest.stages[-1].states[-1] == "final_prenorm"


def test_the_canary_compares_both(fork_server: ForkServer, make_spec: SpecMaker) -> None:
    spec = make_spec(final="both", extra_arguments=RANK_FLAGS)
    assert spec.spool is not None
    target = CanaryTarget(ServerPlace(spec.url, (spec.spool,)), timeout_s=120, parts_timeout_s=3)
    with fork_server.serve(spec) as server:
        server.wait_ready(timeout_s=120)
        report = run_canary(target, 5)
    outcomes = {check.name: check.outcome for check in report.checks}
    assert report.holds, report.checks
    assert (outcomes["norm"], outcomes["ranks"], outcomes["logits"]) == ("ok", "ok", "ok")


def test_a_final_state_that_is_not_the_norm_of_the_other_is_seen() -> None:
    dice = np.random.default_rng(1)
    before = dice.normal(size=(40, 32)).astype(np.float32) * dice.uniform(1, 9, size=(40, 1)).astype(np.float32)
    weights = dice.normal(1, 0.2, size=32).astype(np.float32)
    rms = before / np.sqrt(np.square(before).mean(1, keepdims=True)) * weights
    centred = before - before.mean(1, keepdims=True)
    layer = centred / np.sqrt(np.square(centred).mean(1, keepdims=True)) * weights + weights
    for after, outcome in ((rms, "ok"), (layer, "ok"), (before, "failed"), (np.roll(rms, 1, 0), "failed")):
        prompt = PromptStates(0, (), {"final": after, "final_prenorm": before}, {})
        assert check_norm([prompt], "F32").outcome == outcome
    few = PromptStates(0, (), {"final": rms[:3], "final_prenorm": before[:3]}, {})
    assert check_norm([few], "F32").outcome == "skipped"


def test_a_tap_that_does_not_know_the_wish_is_noticed(
    fork_server: ForkServer, make_spec: SpecMaker, tmp_path: Path
) -> None:
    forgetful = tmp_path / "forgetful.py"
    forgetful.write_text("import os\ndel os.environ['AUXTAP_FINAL']\n")
    with (
        fork_server.serve(make_spec(final="pre-norm"), first=forgetful) as server,
        pytest.raises(ServerError, match=r"takes the post-norm final state, not pre-norm: .* is older"),
    ):
        server.wait_ready(timeout_s=60)


def test_a_norm_that_the_patch_does_not_know_is_refused_at_the_start(
    fork_server: ForkServer, make_spec: SpecMaker, tmp_path: Path
) -> None:
    unknown = tmp_path / "unknown.py"
    unknown.write_text("from sglang.srt.auxtap import backbones\nbackbones.NORMS.clear()\n")
    with (
        fork_server.serve(make_spec(final="both"), first=unknown) as server,
        pytest.raises(ServerError, match=r"^auxtap: refused: the pre-norm final state of LlamaModel is not to be had"),
    ):
        server.wait_ready(timeout_s=60)
