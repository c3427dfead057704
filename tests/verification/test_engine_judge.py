"""Verdicts, and what an engine case is made of; no server."""

import ast
import json
from pathlib import Path

import pytest

from auxtap.core.errors import UsageError
from auxtap.verification import engine as engine_module
from auxtap.verification.engine import (
    DEFAULT_CASES,
    DIFFERS,
    EQUAL,
    INCOMPLETE,
    SAMPLE_TOKENS,
    TOLERANCE,
    CaseResult,
    EngineReport,
    judge,
    write_dataset,
)
from auxtap.verification.engine_cases import SETTINGS, EngineCase
from auxtap.verification.engine_scripts import engine_script
from auxtap.verification.reference import Comparison, StateComparison
from auxtap.verification.tiny_models import SCRIPT, TINY_MODELS

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
    cells = judge(CASE, "0.5.9", compared(*states), (2,), 10)
    assert [cell.verdict for cell in cells] == verdicts
    result = CaseResult(CASE, 2, 10, 1.0, cells)
    assert result.holds == (set(verdicts) == {EQUAL})
    assert EngineReport("0.5.9", "p", TOLERANCE, (result,)).holds == result.holds


def test_a_report_of_nothing_proves_nothing() -> None:
    assert not EngineReport("0.5.9", "p", TOLERANCE, ()).holds
    assert not CaseResult(CASE, 0, 0, 0.0, (), "the server died").holds


def test_the_dataset_is_the_same_every_time_and_spans_the_lengths(tmp_path: Path) -> None:
    first, again = write_dataset(tmp_path / "a"), write_dataset(tmp_path / "b")
    assert first.read_bytes() == again.read_bytes()
    lengths = [len(json.loads(line)["input_ids"]) for line in first.read_text().splitlines()]
    assert lengths == list(SAMPLE_TOKENS)
    assert min(lengths) == 1
    assert max(lengths) == 200


def test_default_cases_are_what_the_project_promises() -> None:
    settings: dict[str, set[str]] = {}
    for case in DEFAULT_CASES:
        settings.setdefault(case.model, set()).add(case.setting)
    assert settings == {"llama": {"default", "chunk16", "pp2"}, "kimi_k25": {"default", "chunk16"}}
    assert SETTINGS["chunk16"] == ("--chunked-prefill-size", "16")


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
        with pytest.raises(UsageError, match="no engine case"):
            engine_module.check_cases((case,))
