"""`auxtap engine`: the environments in which SGLang serves on a CPU."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auxtap.commands.context import cache_layout

if TYPE_CHECKING:
    from auxtap.verification.engine import EngineReport

engine_app = typer.Typer(
    name="engine", no_args_is_help=True, help="Set up the environments in which SGLang serves on a CPU."
)


@engine_app.command()
def setup(
    release: Annotated[str, typer.Option(help="SGLang release the environment serves.")] = "0.5.9",
    python: Annotated[
        Path | None, typer.Option(help="Python that makes the environment. [default: the one that runs auxtap]")
    ] = None,
    torch_index: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Package index for torch, such as one of CPU builds. [default: pip's own]"),
    ] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Begin from nothing.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Make, repair or find the environment that serves a release on a CPU."""
    from auxtap.serving.engine_env import set_up_engine
    from auxtap.ui import console, engine_view

    with engine_view.setup_progress() as progress:
        environment = set_up_engine(
            release, cache_layout(), python=python, torch_index=torch_index, rebuild=rebuild, progress=progress
        )
    if json_output:
        console.emit_json(engine_view.environment_record(environment))
    else:
        engine_view.show_environment(environment)


def report_record(report: "EngineReport") -> dict[str, Any]:
    """Return a numeric proof as data; an error that is no number is null."""
    return {
        "release": report.release,
        "patch_digest": report.patch_digest,
        "tolerance": report.tolerance,
        "holds": report.holds,
        "cases": [
            {
                "model": case.case.model,
                "setting": case.case.setting,
                "holds": case.holds,
                "samples": case.samples,
                "tokens": case.tokens,
                "ready_s": round(case.ready_s, 2),
                "problem": case.problem,
                "states": [
                    {
                        "state": cell.state,
                        "max_abs": cell.max_abs if math.isfinite(cell.max_abs) else None,
                        "max_rel": cell.max_rel if math.isfinite(cell.max_rel) else None,
                        "rows": cell.rows,
                        "verdict": cell.verdict,
                    }
                    for cell in case.cells
                ],
            }
            for case in report.cases
        ],
    }


def show_report(report: "EngineReport") -> None:
    """Print the table of a numeric proof."""
    from auxtap.ui import console, engine_view

    rows = []
    for case in report.cases:
        name, setting = case.case.model, case.case.setting
        if case.problem is not None:
            rows.append(
                engine_view.ProofRow(name, report.release, setting, "", None, None, 0, case.problem, holds=False)
            )
        for cell in case.cells:
            rows.append(
                engine_view.ProofRow(
                    *(name, report.release, setting, cell.state, cell.max_abs, cell.max_rel, cell.rows, cell.verdict),
                    holds=cell.verdict == "equal",
                )
            )
    console.out().print(engine_view.proof_table(rows, report.tolerance))
