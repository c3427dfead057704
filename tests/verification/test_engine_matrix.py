"""Models under settings: a small covering set by default, all of them with `--engine-matrix`."""

import pytest

from auxtap.checkout.source import Source
from auxtap.checkout.worktree import AppliedWorktree
from auxtap.core.cache import CacheLayout
from auxtap.rewriters.patch.diff import PatchSet
from auxtap.serving.engine_env import EngineEnvironment
from auxtap.verification.engine.engine_cases import CasePlan, EngineCase, engine_cases, matrix_cases
from auxtap.verification.engine.engine_proof import verify_engine
from auxtap.verification.engine.engine_report import RIGHT
from auxtap.verification.engine.engine_settings import SETTINGS
from auxtap.verification.engine.tiny_models import STAND_INS, TINY_MODELS

pytestmark = pytest.mark.engine

# With the quick cases of the release, each model and each setting at least once; pipeline stages for each kind of
# backbone, as each has its own line.
COVERING = (
    EngineCase("llama", "pp2_two_rows"),
    EngineCase("llama", "retraction"),
    EngineCase("llama", "tp2_pp2"),
    EngineCase("llama", "one_by_one"),
    EngineCase("qwen2", "pp2"),
    EngineCase("qwen2", "new0"),
    EngineCase("qwen3", "mixed"),
    EngineCase("qwen3_moe", "pp2_chunk8"),
    EngineCase("qwen3_moe", "concurrent32"),
    EngineCase("gpt_oss", "tp2"),
    EngineCase("mixtral", "pp2"),
    EngineCase("mixtral", "tp2"),
    EngineCase("starcoder2", "chunk8"),
    EngineCase("deepseek_v3", "dp2"),
    EngineCase("kimi_k25", "two_rows"),
    EngineCase("kimi_k25", "new8"),
    EngineCase("llama", "pre_norm"),
    EngineCase("qwen3", "pp2_both_finals"),
    EngineCase("kimi_k25", "both_finals"),
)


def test_the_covering_set_leaves_out_no_model_and_no_setting(pinned_source: Source) -> None:
    cases = {*COVERING, *engine_cases(pinned_source.tree).cases}
    assert {case.model for case in cases} == set(TINY_MODELS)
    # 0.5.9 heeds no extra_key; `test_engine_faults` shows that a prefix hit is noticed there.
    assert {case.setting for case in cases} == set(SETTINGS) - {"radix_key"}
    assert engine_cases(pinned_source.tree).not_run == ("kimi_k25/pp2: the model's forward takes no pp_proxy_tensors",)


@pytest.mark.timeout(5400)
def test_every_state_equals_the_reference(
    patched: AppliedWorktree,
    pinned_source: Source,
    pinned_patch: PatchSet,
    engine: EngineEnvironment,
    shared_cache: CacheLayout,
    request: pytest.FixtureRequest,
) -> None:
    if request.config.getoption("--engine-matrix"):
        staged = [insertion.path for insertion in pinned_patch.plan.insertions if insertion.kind == "stage"]
        looped = [insertion.path for insertion in pinned_patch.plan.insertions if insertion.kind == "loop"]
        plan = matrix_cases(pinned_source.tree, staged, looped_files=looped)
    else:
        plan = CasePlan((*engine_cases(pinned_source.tree).cases, *COVERING), ())
    report = verify_engine(patched, engine, shared_cache, cases=plan)
    assert {str(result.case): result.problem for result in report.cases if result.problem is not None} == {}
    wrong = [cell for cell in report.cells if cell.verdict not in RIGHT]
    assert wrong == []
    assert [result.case for result in report.cases] == list(plan.cases)
    assert {result.case.model for result in report.cases if result.stand_ins} == set(STAND_INS)
    assert report.holds
    assert report.patch_digest == patched.patch_digest
