"""Show the steps of a whole job as they run, and what came of them in one closing table."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from auxtap.commands.views import console


@dataclass
class Step:
    """A step that runs: `progress` takes its lines, `outcome` is what its closing line will say."""

    progress: Callable[[str], None]
    outcome: str = "done"
    seconds: float = 0.0


@contextlib.contextmanager
def step(title: str) -> Iterator[Step]:
    """Show one step: its command line, a spinner with its latest progress, then outcome and time."""
    err = console.err()
    err.print(f"[bold cyan]$[/] {escape(title)}", soft_wrap=True)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        if err.is_terminal:
            status = stack.enter_context(err.status("starting"))
            running = Step(lambda line: status.update(escape(line[: err.width - 4])))
        else:
            running = Step(lambda line: None)
        try:
            yield running
        except BaseException:
            stack.close()
            err.print(f"  [bold red]failed[/] after {time.monotonic() - began:.1f} s")
            raise
    running.seconds = time.monotonic() - began
    err.print(f"  [green]ok[/] {escape(running.outcome)} [dim]({running.seconds:.1f} s)[/]", soft_wrap=True)


def show_closing_table(rows: Sequence[tuple[str, str]], *, held: bool) -> None:
    """Show name and value of each figure, and whether everything held."""
    table = Table(title="What this run showed", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(escape(name), escape(value))
    console.out().print(table)
    verdict = "[bold green]Everything held.[/]" if held else "[bold red]Not everything held.[/]"
    console.out().print(verdict)
