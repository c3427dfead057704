"""`auxtap upgrade`: what a new SGLang release changes, and its patch."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auxtap.commands.context import cache_layout
from auxtap.commands.patching import DEFAULT_LAYERS, DEFAULT_MODELS, LAYERS_HELP, MODELS_HELP
from auxtap.core.errors import CheckFailedError, PatchError

if TYPE_CHECKING:
    from auxtap.verification.releases.upgrade import UpgradeReport

_SOURCE_HELP = "release such as 0.5.9, or a SOURCE."


def upgrade(
    context: typer.Context,
    from_source: Annotated[str, typer.Option("--from", metavar="A", help=f"The old {_SOURCE_HELP}")],
    to_source: Annotated[str, typer.Option("--to", metavar="B", help=f"The new {_SOURCE_HELP}")],
    layers: Annotated[str, typer.Option(help=LAYERS_HELP)] = DEFAULT_LAYERS,
    model: Annotated[str, typer.Option(help=MODELS_HELP)] = DEFAULT_MODELS,
    out: Annotated[Path | None, typer.Option(help="Folder to write the new release's patch into.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Retrace, regenerate and prove for B, show what changed since A, and give one verdict."""
    from auxtap.checkout.publication import publish_patch
    from auxtap.checkout.source import open_source
    from auxtap.commands import patching
    from auxtap.commands.views import console, sweep_view
    from auxtap.tracer.reading.trees import Readings
    from auxtap.verification.releases.upgrade import compare_releases

    wanted = patching.wanted(context, model, layers, "")
    layout = cache_layout()
    old, new = (open_source(_spec(text), layout, console.say) for text in (from_source, to_source))
    console.say(f"comparing SGLang {old.tree.release} with {new.tree.release}")
    report = compare_releases(old, new, wanted.models, wanted.layers, readings=Readings(layout.readings))
    written = None
    refused = wanted.named and report.proved is not None and bool(report.proved.refused.none_left)
    if out is not None and report.proved is not None and report.proved.proof.holds and not refused:
        written = publish_patch(out, report.after, report.proved.patch_set.patch, report.proved.manifest).patch
        console.say(f"wrote {written}")
    if json_output:
        console.emit_json(_record(report, written))
    else:
        rows = [sweep_view.ChangeRow(**asdict(change)) for change in report.changes]
        sweep_view.show_upgrade(rows, f"{report.before} to {report.after}: {report.outcome}", report.reason)
    if report.proved is not None:
        patching.check_models(report.proved, wanted)
    if report.proved is None and wanted.named:
        raise PatchError(
            f"there is no patch for SGLang {report.after}: {report.reason}",
            hint=f"auxtap trace {_spec(to_source)} shows it",
        )
    if report.outcome == "needs a person":
        raise CheckFailedError(
            f"SGLang {report.after} needs a person: {report.reason}", hint=f"auxtap trace {_spec(to_source)} shows it"
        )


def _spec(text: str) -> str:
    from auxtap.checkout.releases import PYPI_PREFIX, locked_wheels

    known = any(text == wheel.release for wheel in locked_wheels())
    return f"{PYPI_PREFIX}{text}" if known and not Path(text).exists() else text


def _record(report: "UpgradeReport", written: Path | None) -> dict[str, Any]:
    return {
        "from": report.before,
        "to": report.after,
        "verdict": report.outcome,
        "reason": report.reason,
        "changes": [asdict(change) for change in report.changes],
        "patch": None if written is None else str(written),
        "refused": []
        if report.proved is None
        else [{**asdict(each), "file": str(each.file)} for each in report.proved.refused.classes],
        "patch_sha256": None if report.proved is None else report.proved.patch_set.digest,
    }
