"""Verdicts, and what an engine case is made of; no server."""

import ast
import json
from pathlib import Path

import pytest

from auxtap.core.errors import UsageError
from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.verification.engine.engine_cases import (
    CasePlan,
    EngineCase,
    NotRun,
    check_cases,
    engine_cases,
    matrix_cases,
)
from auxtap.verification.engine.engine_report import (
    DIFFERS,
    EQUAL,
    INCOMPLETE,
    KNOWN,
    TOLERANCE,
    CaseResult,
    EngineReport,
    judge,
)
from auxtap.verification.engine.engine_run import missing_evidence, write_dataset
from auxtap.verification.engine.engine_scripts import engine_script
from auxtap.verification.engine.engine_settings import LONGEST, SAMPLE_TOKENS, SETTINGS
from auxtap.verification.engine.known_differences import KNOWN_DIFFERENCES, KnownDifference
from auxtap.verification.engine.reference import Comparison, StateComparison
from auxtap.verification.engine.tiny_models import SCRIPT, TINY_MODELS

CASE = EngineCase("llama", "default")


def compared(*states: tuple[str, int, float]) -> Comparison:
    return Comparison(2, 10, tuple(StateComparison(name, rows, 1e-5, rel, "a") for name, rows, rel in states))


@pytest.mark.parametrize(
    ("states", "verdicts"),
    [
        ([("hidden.2", 10, TOLERANCE), ("final", 10, 0.0)], [EQUAL, EQUAL]),
        ([("hidden.2", 10, TOLERANCE * 1.01), ("final", 10, 0.0)], [DIFFERS, EQUAL]),
        ([("hidden.2", 10, float("inf")), ("final", 10, 0.0)], [DIFFERS, EQUAL]),
        ([("hidden.2", 9, 0.0), ("final", 10, 0.0)], [INCOMPLETE, EQUAL]),
        ([("final", 10, 0.0)], [INCOMPLETE, EQUAL]),
        ([("hidden.2", 10, 0.0)], [EQUAL, INCOMPLETE]),
        ([], [INCOMPLETE, INCOMPLETE]),
    ],
)
def test_verdicts(states: list[tuple[str, int, float]], verdicts: list[str]) -> None:
    cells = judge(CASE, "0.5.9", compared(*states), ("hidden.2", "final"), 10)
    assert [cell.verdict for cell in cells] == verdicts
    result = CaseResult(CASE, 2, 10, 1.0, cells)
    assert result.holds == (set(verdicts) == {EQUAL})
    assert EngineReport("0.5.9", "p", TOLERANCE, (result,)).holds == result.holds


def test_a_report_of_nothing_proves_nothing() -> None:
    assert not EngineReport("0.5.9", "p", TOLERANCE, ()).holds
    assert not CaseResult(CASE, 0, 0, 0.0, (), "the server died").holds


def test_a_difference_counts_as_known_only_in_its_cells_and_below_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = KnownDifference("llama", 1e-3, "a cause", releases=("0.5.9",), states=("hidden.2",))
    monkeypatch.setattr("auxtap.verification.engine.known_differences.KNOWN_DIFFERENCES", (entry,))

    def verdicts(release: str, *errors: float) -> list[str]:
        states = zip(("hidden.2", "final"), (10, 10), errors, strict=True)
        return [cell.verdict for cell in judge(CASE, release, compared(*states), ("hidden.2", "final"), 10)]

    assert verdicts("0.5.9", 1e-4, 0.0) == [KNOWN, EQUAL]
    assert verdicts("0.5.9", 1e-2, 1e-4) == [DIFFERS, DIFFERS]
    assert verdicts("0.5.8", 1e-4, 0.0) == [DIFFERS, EQUAL]
    assert verdicts("0.5.9", float("inf"), 0.0) == [DIFFERS, EQUAL]


def test_every_known_difference_has_a_cause_and_a_bound() -> None:
    for entry in KNOWN_DIFFERENCES:
        assert entry.model in TINY_MODELS
        assert len(entry.cause) > 20
        assert entry.max_rel < 1
        assert entry.releases


@pytest.mark.parametrize("name", SETTINGS)
def test_the_dataset_of_a_setting_is_the_same_every_time(tmp_path: Path, name: str) -> None:
    setting = SETTINGS[name]
    first, again = (
        write_dataset(tmp_path / "a", setting.lengths, repeated=setting.repeated),
        write_dataset(tmp_path / "b", setting.lengths, repeated=setting.repeated),
    )
    assert first.read_bytes() == again.read_bytes()
    prompts = [json.loads(line)["input_ids"] for line in first.read_text().splitlines()]
    assert len(prompts) == setting.n_requests
    assert sum(map(len, prompts)) == setting.n_tokens
    if setting.repeated:
        assert prompts[::2] == prompts[1::2]


def test_settings_span_the_lengths() -> None:
    assert (min(SAMPLE_TOKENS), max(SAMPLE_TOKENS)) == (1, 200)
    for name in ("one_by_one", "concurrent32"):
        assert (min(SETTINGS[name].lengths), max(SETTINGS[name].lengths)) == (1, LONGEST)
    assert len(SETTINGS["concurrent32"].lengths) == 32
    assert set(SETTINGS["two_rows"].lengths) == {2}


def test_a_setting_that_did_not_happen_is_noticed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Prefill batch, #new-seq: 1, #new-token: 15, #cached-token: 0\n")
    assert "no prefill chunk of 16 tokens" in (missing_evidence(log, SETTINGS["chunk16"]) or "")
    log.write_text("Prefill batch, #new-seq: 1, #new-token: 16, #cached-token: 0\n")
    assert missing_evidence(log, SETTINGS["chunk16"]) is None
    assert "retracted" in (missing_evidence(log, SETTINGS["retraction"]) or "")


def tree_of(**models: bytes) -> SourceTree:
    files = {SRT_ROOT / "models" / f"{name}.py": data for name, data in models.items()}
    return SourceTree(release="0.0.0", origin="test", commit="", files=files)


STAGES = b"pp_proxy_tensors"


def test_quick_cases_are_llama_and_kimi_where_it_can_run() -> None:
    plan = engine_cases(tree_of(llama=STAGES, deepseek_v2=STAGES, kimi_k25=b""))
    assert {str(case) for case in plan.cases} == {
        *(f"llama/{setting}" for setting in ("default", "chunk16", "pp2")),
        *("kimi_k25/default", "kimi_k25/chunk16", "deepseek_v3/pp2"),
    }
    assert plan.not_run == ("kimi_k25/pp2: the model's forward takes no pp_proxy_tensors",)
    assert engine_cases(tree_of(llama=STAGES, deepseek_v2=STAGES, kimi_k25=STAGES)).not_run == ()
    old = engine_cases(tree_of(llama=STAGES, deepseek_v2=STAGES))
    assert [case.model for case in old.cases] == ["llama"] * 3 + ["deepseek_v3"] * 3
    assert old.not_run[0] == "kimi_k25/default: the release has no models/kimi_k25.py"


def test_the_matrix_leaves_nothing_out_without_a_reason() -> None:
    tree = tree_of(llama=STAGES, qwen3=STAGES)
    plan = matrix_cases(tree, [SRT_ROOT / "models/llama.py"], ("llama", "qwen3", "gpt_oss"), ("default", "pp2"))
    assert plan == CasePlan(
        (EngineCase("llama", "default"), EngineCase("llama", "pp2"), EngineCase("qwen3", "default")),
        (
            NotRun(
                EngineCase("qwen3", "pp2"),
                "the patch has no stage tap in qwen2.py: write it with --model qwen2 or --model all",
            ),
            NotRun(EngineCase("gpt_oss", "default"), "the release has no models/gpt_oss.py"),
            NotRun(EngineCase("gpt_oss", "pp2"), "the release has no models/gpt_oss.py"),
        ),
    )


def test_what_no_patch_captures_is_left_out_with_the_refusal() -> None:
    model = b"""
class MixtralModel:
    def forward(self, hidden_states):
        aux_hidden_states = []
        for i in range(len(self.layers)):
            hidden_states = self.layers[i](hidden_states)
            if i + 1 in self.layers_to_capture:
                aux_hidden_states.append(hidden_states)
        return hidden_states, aux_hidden_states
"""
    plan = matrix_cases(tree_of(mixtral=model), [], ("mixtral",), ("default",))
    assert plan.not_run == (
        "mixtral/default: refused in mixtral.py: MixtralModel: it keeps a tensor that later blocks may write over, or "
        "leaves the residual out",
    )


def test_what_sglang_itself_cannot_serve_is_left_out_with_its_reason() -> None:
    runner = {SRT_ROOT / "model_executor/model_runner.py": b"MLA optimization not supported on CPU"}
    files = dict(tree_of(llama=b"", deepseek_v2=b"", starcoder2=b"pp_rank = pp_group.rank\n").files)
    tree = SourceTree(release="0.0.0", origin="test", commit="", files={**files, **runner})
    plan = engine_cases(tree)
    assert [str(case) for case in plan.cases] == ["llama/default", "llama/chunk16"]
    reasons = {str(each.case): each.reason for each in plan.left_out}
    assert reasons["deepseek_v3/default"] == "ModelRunner refuses MLA on a CPU without AMX"
    assert reasons["llama/pp2"] == "the model's forward takes no pp_proxy_tensors"
    looped = [SRT_ROOT / "models/starcoder2.py"]
    ranks = matrix_cases(tree, [], ("llama", "starcoder2"), ("tp2", "dp2"), looped)
    assert [str(case) for case in ranks.cases] == ["llama/tp2", "llama/dp2", "starcoder2/dp2"]
    assert "rank in the whole server" in ranks.not_run[0]


def test_every_tiny_model_has_a_recipe() -> None:
    tree = ast.parse(engine_script(SCRIPT).read_text())
    recipes = [
        decorator.args[0].value
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and isinstance(decorator.args[0], ast.Constant)
    ]
    assert recipes == list(TINY_MODELS)


def test_an_unknown_case_is_refused_before_anything_is_made() -> None:
    for case in (EngineCase("gpt9", "default"), EngineCase("llama", "tp64")):
        with pytest.raises(UsageError, match="no engine case") as caught:
            check_cases((case,))
        assert ("one function" if case.model == "gpt9" else "settings: default") in str(caught.value.hint)
