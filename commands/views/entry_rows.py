"""Rows of line number, role and source line: three columns that a whole trace has thousands of, without a table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import strip_control_codes
from rich.segment import Segment
from rich.text import Text

_GAP = 2
_LEAST_ROOM = 20


@dataclass(frozen=True)
class EntryRow:
    """One row; `detail` is what a role alone does not say, below the source line."""

    line: int
    role: str
    code: str
    detail: str | None = None


@dataclass(frozen=True)
class EntryRows:
    """Rows whose columns line up; long source lines are folded within their column.

    rich's own table measures and wraps every cell of every row several times, which made most of the time of a
    trace that was kept. Where the terminal leaves the last column no room, the source line goes below.
    """

    rows: Sequence[EntryRow]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        number_width = max(len(str(row.line)) for row in self.rows)
        role_width = max(len(row.role) for row in self.rows)
        indent = number_width + role_width + 2 * _GAP
        below = options.max_width - indent < _LEAST_ROOM
        if below:
            indent = number_width + _GAP
        room = max(options.max_width - indent, 1)
        dim, green, plain, faint = (console.get_style(name) for name in ("dim", "green", "none", "italic dim"))
        for row in self.rows:
            yield Segment(f"{row.line:>{number_width}}{' ' * _GAP}", dim)
            yield Segment(row.role if below else f"{row.role:<{role_width + _GAP}}", green)
            if below:
                yield Segment.line()
            styled = [(part, plain) for part in _folded(row.code, room, console)]
            styled += [(part, faint) for part in _folded(row.detail or "", room, console)]
            for position, (part, style) in enumerate(styled):
                if position or below:
                    yield Segment(" " * indent)
                yield Segment(part, style)
                yield Segment.line()


def _folded(text: str, room: int, console: Console) -> Iterator[str]:
    text = strip_control_codes(text.expandtabs())
    if cell_len(text) <= room:
        if text:
            yield text
        return
    for part in Text(text).wrap(console, room, overflow="fold"):
        yield part.plain
