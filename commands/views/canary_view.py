"""Show the checks of a canary."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from auxtap.commands.views import console

_STYLES = {"ok": "green", "failed": "bold red", "skipped": "dim"}


@dataclass(frozen=True)
class CheckRow:
    """One check, its outcome and the figures."""

    name: str
    outcome: str
    detail: str


def show_checks(url: str, rows: Sequence[CheckRow], *, to_stderr: bool = False) -> None:
    """Print the checks as a table."""
    table = Table(title=f"canary on {url}")
    for column in ("check", "outcome", "detail"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row.name, Text(row.outcome, style=_STYLES.get(row.outcome, "")), Text(row.detail))
    (console.err() if to_stderr else console.out()).print(table)
