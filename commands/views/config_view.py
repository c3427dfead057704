"""Show settings: what holds, and who said so."""

from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from auxtap.commands.views import console


@dataclass(frozen=True)
class SettingRow:
    """One setting; `command` is empty for what belongs to none."""

    command: str
    option: str
    value: Any
    origin: str


def show_settings(path: str | None, rows: list[SettingRow], *, as_json: bool) -> None:
    """Print settings to stdout."""
    if as_json:
        console.emit_json({"file": path, "settings": [asdict(row) for row in rows]})
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("command", "option", "value", "because of"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row.command, row.option, escape(_text(row.value)), escape(row.origin))
    console.out().print(table)
    console.say(f"configuration file: {path}" if path else "no configuration file")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
