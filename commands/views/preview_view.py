"""Show one sample: what is trained on, and each state's token beside what it is to predict."""

from dataclasses import asdict

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from auxtap.commands.views import console
from auxtap.extraction.audit.preview import Preview, PreviewToken, rows_around_changes

# So many rows beside each change of the mask show a shift.
ROWS_AROUND = 3
_LONGEST_TEXT = 28
_TRAINED, _NOT_TRAINED = "bold green", "dim"


def show_preview(preview: Preview, *, all_rows: bool, as_json: bool) -> None:
    """Show a sample."""
    if as_json:
        console.emit_json(asdict(preview))
        return
    out = console.out()
    split = f", split {preview.split}" if preview.split else ""
    out.print(
        f"[bold]{escape(preview.sample_id)}[/] ({escape(preview.place)}): {preview.n_tokens:,} tokens, "
        f"{preview.n_trained:,} trained on ({100 * preview.n_trained / preview.n_tokens:.1f} %){split}",
        soft_wrap=True,
    )
    for run in preview.runs:
        text = Text(f"  trained {run.first} to {run.last}  ")
        text.append(repr(run.text) if run.text else f"{run.last - run.first + 1} tokens", style=_TRAINED)
        out.print(text, soft_wrap=True)
    out.print(_table(preview, all_rows=all_rows))
    out.print(
        "* is trained on. From the state of a token the model predicts the next one; a drafter is given the state and "
        "the next token, and drafts the one behind that.",
        style="dim",
        soft_wrap=True,
    )


def _table(preview: Preview, *, all_rows: bool) -> Table:
    table = Table(box=box.SIMPLE)
    for name in ("position", "state of", "predicts", "drafts"):
        table.add_column(name, justify="right" if name == "position" else "left")
    before = -1
    for row in preview.rows if all_rows else rows_around_changes(preview, ROWS_AROUND):
        if row.token.position != before + 1:
            table.add_row("...", "", "", "", style="dim")
        before = row.token.position
        table.add_row(str(before), *(_cell(token) for token in (row.token, row.predicts, row.drafts)))
    return table


def _cell(token: PreviewToken | None) -> Text:
    if token is None:
        return Text("")
    mark = "* " if token.trained else "  "
    shown = repr(token.text) if token.text else ""
    if len(shown) > _LONGEST_TEXT:
        shown = shown[: _LONGEST_TEXT - 4] + "...'"
    return Text(f"{mark}{token.token_id:<7}{shown}".rstrip(), style=_TRAINED if token.trained else _NOT_TRAINED)
