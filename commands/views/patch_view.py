"""Show a capture patch, its proof, and the worktree that it went to."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from auxtap.commands.views import console

_VERDICT = {True: ("yes", "green"), False: ("NO", "bold red")}


@dataclass(frozen=True)
class CheckRow:
    """One check and its answer."""

    name: str
    holds: bool
    detail: str


@dataclass(frozen=True)
class InsertionRow:
    """One inserted line: what for, where, and on which statement the place hangs."""

    kind: str
    path: str
    line: int
    scope: str
    anchor: str


@dataclass(frozen=True)
class DecisionRow:
    """One hazard and what was decided about it."""

    hazard: str
    decision: str
    flags: str


@dataclass(frozen=True)
class PatchRow:
    """What a patch comes to."""

    release: str
    origin: str
    digest: str
    n_files: int
    n_inserted: int
    n_new_files: int
    models: tuple[str, ...]
    layers: tuple[int, ...]
    proof: str


@dataclass(frozen=True)
class ClassRow:
    """One model class and how its states are captured, or why they cannot be."""

    name: str
    file: str
    way: str
    backbone: str
    reason: str


@dataclass(frozen=True)
class IdsRow:
    """The ids by which setters choose the layers from a draft model's configuration; None where no list does."""

    setter: str
    ids: tuple[int, ...] | None
    classes: tuple[str, ...]


WIDE = 100


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    # A column that may not wrap is cut off in a narrow terminal, and the ones behind it are gone.
    wide = console.out().width >= WIDE
    for column in columns[:-1]:
        table.add_column(column, no_wrap=wide, overflow="fold")
    table.add_column(columns[-1], overflow="fold")
    return table


def checks_table(checks: Sequence[CheckRow]) -> Table:
    """Return a table with one line a check."""
    table = _table("check", "holds", "what was found")
    for check in checks:
        word, style = _VERDICT[check.holds]
        table.add_row(check.name, Text(word, style=style), escape(check.detail))
    return table


def insertions_table(insertions: Sequence[InsertionRow]) -> Table:
    """Return a table with one line an inserted line."""
    table = _table("line for", "file", "line", "in", "place")
    for row in insertions:
        table.add_row(row.kind, row.path, str(row.line), row.scope or "(module)", row.anchor)
    return table


def decisions_table(decisions: Sequence[DecisionRow]) -> Table:
    """Return a table with one line a hazard."""
    table = _table("hazard", "decision", "server flags")
    for row in decisions:
        table.add_row(row.hazard, row.decision, escape(row.flags))
    return table


def ids_table(rows: Sequence[IdsRow]) -> Table:
    """Return a table with one line a list of draft-config ids."""
    table = _table("draft-config ids", "by setter", "of classes")
    for row in rows:
        ids = "none gives these layers" if row.ids is None else ", ".join(map(str, row.ids))
        table.add_row(ids, row.setter, ", ".join(row.classes))
    return table


def classes_table(classes: Sequence[ClassRow]) -> Table:
    """Return a table with one line a model class."""
    table = _table("class", "captured", "backbone", "how, or why not")
    for row in classes:
        table.add_row(row.name, row.way, row.backbone, escape(row.reason))
    return table


def summary_table(patch: PatchRow, checks: Sequence[CheckRow]) -> Table:
    """Return the closing table of a patch."""
    passed = sum(check.holds for check in checks)
    facts = [
        ("release", f"SGLang {patch.release} ({patch.origin})"),
        ("models", ", ".join(patch.models)),
        ("layers by default", f"{', '.join(map(str, patch.layers))} and the final state"),
        ("upstream files", str(patch.n_files)),
        ("inserted lines", str(patch.n_inserted)),
        ("removed lines", "0"),
        ("new files", f"{patch.n_new_files} (the tap)"),
        ("checks passed", f"{passed} of {len(checks)}"),
        ("proof", patch.proof),
        ("patch digest", patch.digest),
    ]
    return facts_table(facts)


def facts_table(facts: Sequence[tuple[str, str]]) -> Table:
    """Return a table of names and values."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, escape(value))
    return table


def diff_view(diff: str) -> RenderableType:
    """Return a diff for people, coloured on a terminal."""
    if not console.out().is_terminal:
        return Text(diff)
    return Syntax(diff, "diff", word_wrap=False, background_color="default")


def show(*parts: RenderableType) -> None:
    """Print parts to stdout with an empty line between them."""
    spaced: list[RenderableType] = []
    for part in parts:
        spaced += ["", part] if spaced else [part]
    console.out().print(Group(*spaced))
