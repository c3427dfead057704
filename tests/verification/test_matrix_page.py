"""The committed page of the numeric proof: every cell, every cause, and runs that add up."""

from pathlib import Path

from auxtap.verification.engine.engine_cases import EngineCase, NotRun
from auxtap.verification.engine.engine_report import DIFFERS, EQUAL, KNOWN, CaseResult, CellResult, EngineReport
from auxtap.verification.releases.matrix_page import keep_matrix

MODELS = ("all",)


def result(model: str, setting: str, rel: float, verdict: str = EQUAL, **more: str) -> CaseResult:
    cell = CellResult(model, "0.5.9", setting, "final", rel * 10, rel, 7, verdict, more.get("note", ""))
    return CaseResult(EngineCase(model, setting), 1, 7, 0.5, (cell,), stand_ins=more.get("stand_ins", ""))


def report(*results: CaseResult, patch: str = "p" * 64, not_run: tuple[NotRun, ...] = ()) -> EngineReport:
    return EngineReport("0.5.9", patch, 5e-6, results, not_run)


def test_a_cell_says_its_error_and_what_is_to_be_known_of_it(tmp_path: Path) -> None:
    died = CaseResult(EngineCase("qwen2", "tp2"), 0, 0, 0.0, (), "the server died")
    left_out = [NotRun(EngineCase(model, "pp2"), "takes no stages") for model in ("starcoder2", "kimi_k25")]
    page = keep_matrix(
        tmp_path,
        report(
            result("llama", "default", 1.4e-6),
            result("gpt_oss", "default", 0.2, KNOWN, stand_ins="stand-in kernels", note="its cause"),
            result("qwen2", "default", 0.3, DIFFERS, note="one layer off"),
            died,
            not_run=tuple(left_out),
        ),
        MODELS,
        "2026-01-02",
    ).read_text()
    assert "| setting | llama | qwen2 | gpt_oss |" in page
    assert "| default | 1.4e-06 | **FAILED** 3.0e-01 | 2.0e-01 *s* *k* |" in page
    assert "| tp2 | - | **FAILED** no numbers | - |" in page
    assert "2 of 4 servers right, run on 2026-01-02" in page
    assert "- qwen2/tp2 failed: the server died" in page
    assert "- qwen2/default differs: final: one layer off" in page
    assert "known difference, qwen2" not in page
    assert "- known difference, gpt_oss: its cause" in page
    assert "- starcoder2, kimi_k25, pp2: not run: takes no stages" in page


def test_runs_of_the_same_patch_add_up_and_another_patch_begins_anew(tmp_path: Path) -> None:
    keep_matrix(tmp_path, report(result("llama", "tp2", 2e-6), result("llama", "default", 1e-6)), MODELS, "2026-01-02")
    page = keep_matrix(tmp_path, report(result("llama", "default", 3e-6)), MODELS, "2026-01-03").read_text()
    assert page.index("| default | 3.0e-06 |") < page.index("| tp2 | 2.0e-06 |")
    again = keep_matrix(tmp_path, report(result("llama", "default", 4e-6), patch="q" * 64), MODELS, "2026-01-04")
    assert "| tp2 |" not in again.read_text()


def test_the_same_record_gives_the_same_page(tmp_path: Path) -> None:
    pages = [
        keep_matrix(tmp_path / name, report(result("llama", "default", 1e-6)), MODELS, "2026-01-02").read_bytes()
        for name in ("a", "b")
    ]
    assert pages[0] == pages[1]
