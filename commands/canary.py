"""`auxtap canary`: a few prompts through a tapped server, and checks that need no reference model."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auxtap.commands.dataset import TokenizerChoice, TokenizerFolder, TrustRemoteCode, load_dataset

if TYPE_CHECKING:
    from auxtap.extraction.canary.run import CanaryReport
    from auxtap.extraction.datasets.reading import Dataset
    from auxtap.extraction.run.job import ServerPlace


def canary(
    server: Annotated[str, typer.Option(metavar="URL", help="URL of the tapped server.")],
    spool: Annotated[list[Path], typer.Option(help="Folder that its tap writes into; repeat for several hosts.")],
    model_path: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoint to read the output head from. [default: the server's]"),
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(metavar="DATASET", help="Dataset to take prompts from. [default: random tokens]")
    ] = None,
    tokenizer: TokenizerFolder = None,
    trust_remote_code: TrustRemoteCode = False,
    prompts: Annotated[int, typer.Option(min=2, max=256, help="Prompts to send, each three times.")] = 8,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one request.")] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check a tapped server's states without a reference model; exit 8 when a check fails."""
    from auxtap.commands.views import console
    from auxtap.extraction.run.job import ServerPlace

    samples = load_dataset(dataset, TokenizerChoice(tokenizer, trust_remote_code)) if dataset is not None else None
    place = ServerPlace(server, tuple(spool))
    report = watch_canary(place, prompts, samples, model_path=model_path, timeout_s=timeout)
    if as_json:
        console.emit_json(canary_record(report))
    else:
        show_canary(report)
    report.require()


def watch_canary(
    place: "ServerPlace",
    n_prompts: int,
    dataset: "Dataset | None" = None,
    *,
    model_path: Path | None = None,
    timeout_s: float = 600.0,
) -> "CanaryReport":
    """Run a canary and say how it goes."""
    from auxtap.commands.views.console import say
    from auxtap.extraction.canary.run import CanaryTarget, run_canary

    return run_canary(CanaryTarget(place, model_path, timeout_s), n_prompts, dataset, say)


def show_canary(report: "CanaryReport", *, to_stderr: bool = False) -> None:
    """Show the checks as a table; on stderr where stdout belongs to another result."""
    from auxtap.commands.views import canary_view

    rows = [canary_view.CheckRow(check.name, check.outcome, check.detail) for check in report.checks]
    canary_view.show_checks(report.url, rows, to_stderr=to_stderr)


def canary_record(report: "CanaryReport") -> dict[str, Any]:
    """Return a report as JSON."""
    return {**asdict(report), "holds": report.holds}
