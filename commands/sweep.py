"""`auxtap sweep`: the patch of every release, and the table of what came of it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auxtap.commands.context import cache_layout, parse_layers
from auxtap.commands.patching import DEFAULT_LAYERS, DEFAULT_MODELS, LAYERS_HELP, MODELS_HELP
from auxtap.core.errors import CheckFailedError

if TYPE_CHECKING:
    from auxtap.commands.views.sweep_view import SweepRow
    from auxtap.verification.releases.sweep import ReleaseResult


def sweep(
    releases: Annotated[
        str | None, typer.Argument(metavar="[FROM..TO|LIST]", help="Releases to patch. [default: all]")
    ] = None,
    layers: Annotated[str, typer.Option(help=LAYERS_HELP)] = DEFAULT_LAYERS,
    model: Annotated[str, typer.Option(help=MODELS_HELP)] = DEFAULT_MODELS,
    out: Annotated[Path, typer.Option(help="Folder for sglang-<release>/ and compatibility.md.")] = Path("generated"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Write and prove the patch of many SGLang releases; a sweep of all writes the page."""
    from auxtap.checkout.publication import remove_unused_tables
    from auxtap.commands.views import console, sweep_view
    from auxtap.core.files import publish_bytes
    from auxtap.rewriters.patch.registry import parse_models
    from auxtap.verification.releases.compatibility import PAGE_NAME, compatibility_page
    from auxtap.verification.releases.sweep import chosen_releases, sweep_releases

    indices, models = parse_layers(layers), parse_models(model)
    chosen = chosen_releases(releases)
    results = []
    place = None if dry_run else out
    for result in sweep_releases(chosen, models, indices, cache_layout(), place, console.say):
        console.say(f"{result.release}: {result.problem or ('holds' if result.holds else 'does not hold')}")
        results.append(result)
    if json_output:
        console.emit_json({"models": list(models), "releases": [_record(result) for result in results]})
    else:
        sweep_view.show_sweep([_sweep_row(result) for result in results])
    if not dry_run and chosen == chosen_releases(None):
        remove_unused_tables(out)
        publish_bytes(out / PAGE_NAME, compatibility_page(results, models).encode())
        console.say(f"wrote {out / PAGE_NAME}")
    failed = [result.release for result in results if not result.holds]
    if failed:
        raise CheckFailedError(
            f"{len(failed)} of {len(results)} releases have no patch that holds: {', '.join(failed)}",
            hint="the table says why",
        )


def _record(result: "ReleaseResult") -> dict[str, Any]:
    return {**asdict(result), "holds": result.holds, "seconds": round(result.seconds, 2)}


def _sweep_row(result: "ReleaseResult") -> "SweepRow":
    from auxtap.commands.views.sweep_view import SweepRow

    level = result.level
    return SweepRow(
        release=result.release,
        files=result.n_files,
        lines=result.n_lines,
        statements=" ".join(dict.fromkeys(place.kind for place in result.places)),
        hazards=len(result.hazards),
        checks=f"{len(result.passed)}/{len(result.passed) + len(result.rejected)}",
        proof="; ".join(result.rejected) or ("" if level is None else level.level),
        seconds=result.seconds,
        problem=result.problem,
        holds=result.holds,
    )
