"""`auxtap inspect`: what is in a store."""

from pathlib import Path
from typing import Annotated

import typer


def inspect(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Store that auxtap extract made.")],
    samples: Annotated[
        int | None, typer.Option(min=1, help="Read the files of so many samples only. [default: all]")
    ] = None,
    plots: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw SVG plots into this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Look a store through: norms, lengths, masks, duplicates, outliers, slow samples."""
    from auxtap.commands.views import console, extract_view, inspect_view
    from auxtap.extraction.audit.inspection import inspect_store

    with extract_view.check_progress("inspect") as observe:
        found = inspect_store(store, samples, observe)
    inspect_view.show_inspection(found, store, as_json=as_json)
    if plots is not None:
        for path in inspect_view.draw_inspection(found, plots):
            console.say(f"drew {path}")
