"""Show an export while it runs and when it has ended."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from auxtap.commands.views import console
from auxtap.commands.views.extract_view import PLAIN_INTERVAL_S, human_bytes
from auxtap.extraction.export.exporting import ExportProgress, ExportSummary


def describe_export(progress: ExportProgress) -> str:
    """Return counts and bytes in one line."""
    return f"{progress.n_done:,}/{progress.n_samples:,} samples  {human_bytes(progress.bytes_written)} written"


@contextlib.contextmanager
def export_progress() -> Iterator[Callable[[ExportProgress], None]]:
    """Show a bar on a terminal, a line now and then elsewhere."""
    if not console.err().is_terminal:
        yield _Plain()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[detail]}"))
    with Progress(*columns, console=console.err()) as bar:
        task = bar.add_task("export", total=None, detail="")
        yield lambda progress: bar.update(
            task, total=progress.n_samples, completed=progress.n_done, detail=describe_export(progress)
        )


class _Plain:
    """Progress for a log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_at = clock()

    def __call__(self, progress: ExportProgress) -> None:
        """Report what is due."""
        if self._clock() - self._last_at >= PLAIN_INTERVAL_S:
            self._last_at = self._clock()
            console.say(describe_export(progress))


def export_record(summary: ExportSummary, out: Path) -> dict[str, Any]:
    """Return what `auxtap export --json` prints."""
    record = asdict(summary)
    return {"out": str(out), **record, "layers": list(summary.layers), "finals": list(summary.finals)}


def show_export(summary: ExportSummary, out: Path, *, as_json: bool) -> None:
    """Show how an export ended."""
    if as_json:
        console.emit_json(export_record(summary, out))
        return
    table = Table(box=box.SIMPLE, show_header=False, title=escape(f"{summary.format}: {out}"), title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right", overflow="fold")
    for label, value in _rows(summary):
        table.add_row(label, value)
    console.out().print(table)


def _rows(summary: ExportSummary) -> Iterator[tuple[str, str]]:
    yield "states", ", ".join([*(f"hidden.{layer}" for layer in summary.layers), *summary.finals])
    yield "samples", f"{summary.n_samples:,}"
    yield "written now", f"{summary.written:,}"
    yield "linked to the store", f"{summary.linked:,}"
    yield "there before", f"{summary.already:,}"
    yield "skipped when extracted", f"{summary.skipped:,}"
    yield "not extracted", f"{summary.missing:,}"
    yield "bytes", human_bytes(summary.n_bytes)
    if summary.draft_share is not None:
        yield "trained tokens in the draft vocabulary", f"{100 * summary.draft_share:.2f} %"
