"""Show what a sweep over releases found, and what an upgrade changes."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from auxtap.commands.views import console


@dataclass(frozen=True)
class SweepRow:
    """One release of a sweep; `problem` stands in the place of everything else."""

    release: str
    files: int
    lines: int
    statements: str
    hazards: int
    checks: str
    proof: str
    seconds: float
    problem: str | None
    holds: bool


@dataclass(frozen=True)
class ChangeRow:
    """One thing that differs between two releases."""

    topic: str
    what: str
    before: str
    after: str
    decides: bool


def show_sweep(rows: Sequence[SweepRow]) -> None:
    """Print one line a release to stdout."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("release", "files", "lines", "statements", "hazards", "checks", "s"):
        table.add_column(column, no_wrap=True)
    table.add_column("proof", overflow="fold")
    for row in rows:
        style = "" if row.holds else "bold red"
        sizes = ("", "") if row.problem else (str(row.files), str(row.lines))
        cells = (row.statements, str(row.hazards), row.checks) if row.problem is None else ("refused", "", "")
        name, proof = Text(row.release, style=style), escape(row.problem or row.proof)
        table.add_row(name, *sizes, *cells, f"{row.seconds:.1f}", proof)
    console.out().print(table)


def show_upgrade(rows: Sequence[ChangeRow], verdict: str, reason: str) -> None:
    """Print to stdout the verdict, then the differences that it follows from, then all others."""
    console.out().print(f"[bold]{escape(verdict)}[/]: {escape(reason)}", soft_wrap=True)
    for heading, decides in (("What decides it", True), ("What differs besides", False)):
        chosen = [row for row in rows if row.decides is decides]
        if chosen:
            console.out().print()
            console.out().print(heading, style="bold")
            console.out().print(_changes_table(chosen))


def _changes_table(rows: Sequence[ChangeRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("changed", no_wrap=True)
    for column in ("what", "before", "after"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row.topic, escape(row.what), escape(row.before), escape(row.after))
    return table
