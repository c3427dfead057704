"""The numeric part of `auxtap verify`: which servers to run, and how to show what they gave."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from auxtap.commands.context import cache_layout
from auxtap.core.errors import CheckFailedError, UsageError

if TYPE_CHECKING:
    from auxtap.checkout.source import Source
    from auxtap.commands.views.engine_view import ProofRow
    from auxtap.rewriters.patch.diff import PatchSet
    from auxtap.verification.engine.engine_cases import CasePlan
    from auxtap.verification.engine.engine_report import EngineReport

MODELS_HELP = "Tiny models to serve, with commas, each under every setting."
SETTINGS_HELP = "Settings to serve with, with commas, for every tiny model."


@dataclass(frozen=True)
class NumericChoice:
    """What the command line asks for; without any of it the quick cases of the release are run."""

    engine: bool
    matrix: bool
    models: str | None
    settings: str | None
    record: Path | None
    table: Path | None

    def check(self) -> None:
        """Refuse options that have no place.

        Raises:
            UsageError: an option of the numeric proof without it.
        """
        if not self.engine and (self.matrix or self.models or self.settings or self.record or self.table):
            raise UsageError(
                "--matrix, --models, --settings, --record and --table go with --engine", hint="add --engine"
            )

    @property
    def is_matrix(self) -> bool:
        """Whether the cases are chosen from all models and all settings."""
        return self.matrix or self.models is not None or self.settings is not None


def prove_numerically(source: "Source", patch_set: "PatchSet", choice: NumericChoice) -> "EngineReport":
    """Run the chosen servers on a patched tree of their own."""
    from auxtap.commands.views.console import say
    from auxtap.verification.engine.engine_proof import prove_patch
    from auxtap.verification.releases.matrix_page import keep_matrix

    report = prove_patch(source, patch_set, cache_layout(), cases=_plan(source, patch_set, choice), progress=say)
    if choice.table is not None:
        today = datetime.now(UTC).date().isoformat()
        say(f"written: {keep_matrix(choice.table, report, patch_set.plan.models, today)}")
    return report


def _plan(source: "Source", patch_set: "PatchSet", choice: NumericChoice) -> "CasePlan | None":
    from auxtap.verification.engine.engine_cases import matrix_cases
    from auxtap.verification.engine.engine_settings import SETTINGS
    from auxtap.verification.engine.tiny_models import TINY_MODELS

    if not choice.is_matrix:
        return None
    staged, looped = (
        [insertion.path for insertion in patch_set.plan.insertions if insertion.kind == kind]
        for kind in ("stage", "loop")
    )
    models, settings = _names(choice.models) or TINY_MODELS, _names(choice.settings) or tuple(SETTINGS)
    return matrix_cases(source.tree, staged, models, settings, looped)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))


def proof_rows(report: "EngineReport") -> "list[ProofRow]":
    """Return a report as rows: every state, every case without states, every case that was left out."""
    from auxtap.commands.views.engine_view import ProofRow
    from auxtap.verification.engine.engine_report import RIGHT

    rows = []
    for result in report.cases:
        model, setting = result.case.model, result.case.setting
        if result.problem is not None:
            rows.append(ProofRow(model, report.release, setting, "", None, None, 0, result.problem, holds=False))
        for cell in result.cells:
            verdict = "; ".join(part for part in (cell.verdict, cell.note, result.stand_ins) if part)
            measured = (cell.max_abs, cell.max_rel, cell.rows, verdict)
            rows.append(ProofRow(model, cell.release, setting, cell.state, *measured, holds=cell.verdict in RIGHT))
    for left_out in report.not_run:
        model, setting = left_out.case.model, left_out.case.setting
        verdict = f"not run: {left_out.reason}"
        rows.append(ProofRow(model, report.release, setting, "", None, None, 0, verdict, holds=None))
    return rows


def engine_record(report: "EngineReport") -> dict[str, Any]:
    """Return a report as JSON."""
    cases = [{**asdict(result), "holds": result.holds} for result in report.cases]
    not_run = [asdict(case) for case in report.not_run]
    return {"holds": report.holds, "tolerance": report.tolerance, "cases": cases, "not_run": not_run}


def check_report(report: "EngineReport") -> None:
    """Refuse a report that does not hold.

    Raises:
        CheckFailedError: a case differs, or could not be served.
    """
    if report.holds:
        return
    failed = [str(result.case) for result in report.cases if not result.holds]
    if failed:
        raise CheckFailedError(
            f"states differ from the reference in {', '.join(failed)}", hint="the table says which, and why"
        )
    raise CheckFailedError("nothing was compared", hint="the table says why each case was not run")
