"""`auxtap export`: a store as the files that a trainer's own loader reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auxtap.commands.context import parse_layers
from auxtap.core.errors import ExitCode, UsageError
from auxtap.extraction.export.trainer_formats import format_names

if TYPE_CHECKING:
    from auxtap.extraction.run.job import ServerPlace

STORE_FORMATS = ("safetensors", "pt")


def export(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Store that auxtap extract made.")],
    to: Annotated[str, typer.Option("--format", metavar="FORMAT", help=f"One of {', '.join(format_names())}.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the export: a new one, or one to go on with.")],
    layers: Annotated[
        str | None, typer.Option(metavar="3,31,59", help="Capture indices to export. [default: all of the store]")
    ] = None,
    draft_vocab: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Write vocab_mapping.pt (d2t, t2d) of the N tokens trained most often."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Samples of this split only, train or holdout. [default: all]")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Files at a time; 0 is one a CPU, at most 8.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> int:
    """Write a store's samples as a trainer's own files; run again, it continues."""
    from auxtap.commands.views import export_view
    from auxtap.extraction.export.exporting import ExportJob, export_store

    chosen = parse_layers(layers) if layers is not None else ()
    job = ExportJob(store, to, out.absolute(), chosen, draft_vocab, workers, split or "")
    with export_view.export_progress() as observe:
        summary = export_store(job, observe)
    export_view.show_export(summary, out, as_json=as_json)
    return ExitCode.CHECK_FAILED if summary.missing else ExitCode.DONE


def split_format(name: str, *, local: bool) -> tuple[str, str | None]:
    """Return the format of the store and, when `name` is a trainer's, the trainer's.

    Raises:
        UsageError: there is no such format, a package that it needs is missing, or the store is not on this machine.
    """
    from auxtap.extraction.export.trainer_formats import trainer_format

    if name in STORE_FORMATS:
        return name, None
    target = trainer_format(name)
    if not local:
        raise UsageError(
            f"--format {name} needs a store on this machine", hint="extract as safetensors, then auxtap export there"
        )
    target.check_available()
    return STORE_FORMATS[0], name


def check_servers(places: "Sequence[ServerPlace]", trainer: str) -> None:
    """Refuse a run whose states, of any of its servers, the trainer's format cannot hold, before anything is sent.

    Raises:
        UsageError: it cannot.
        ExtractionError: no writer has announced itself.
    """
    from auxtap.extraction.export.suitability import holdings_of_server, select_states
    from auxtap.extraction.export.trainer_formats import trainer_format

    for place in places:
        select_states(holdings_of_server(place.spools), trainer_format(trainer))


def export_beside(store: Path, trainer: str, *, as_json: bool) -> None:
    """Export what a run has stored, beside the store; with --json only stderr hears of it."""
    from auxtap.commands.views import console, export_view
    from auxtap.extraction.export.exporting import ExportJob, default_export_folder, export_store

    out = default_export_folder(store, trainer)
    with export_view.export_progress() as observe:
        summary = export_store(ExportJob(store, trainer, out), observe)
    if as_json:
        console.say(f"{summary.n_samples:,} samples for {trainer} in {out}")
    else:
        export_view.show_export(summary, out, as_json=False)
