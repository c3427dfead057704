"""What a rewriter proposes: a statement at a place, never a change of what stands there."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from auxtap.tracer.source.names import GATE_NAME

TAP_PACKAGE = "sglang.srt.auxtap"
# SGLang's formatter (black) breaks longer lines; these are written as it would write them.
MAX_LINE = 88
_INDENT = " " * 4


@dataclass(frozen=True)
class Insertion:
    """One statement to insert into a file, on lines of its own.

    `line` is the 1-based line of the original file before which it is put. `text` has its indentation and newlines
    between its lines, none after the last; `newline` is the file's at that place. `scope` is the qualified name of the
    enclosing function, empty at module level; `anchor` says in words which statement the place hangs on.
    """

    kind: str
    path: PurePosixPath
    scope: str
    anchor: str
    line: int
    text: str
    newline: str

    @property
    def lines(self) -> tuple[bytes, ...]:
        """The bytes of each line, its end included."""
        return tuple((line + self.newline).encode() for line in self.text.split("\n"))

    @property
    def code(self) -> str:
        """The statement without its indentation."""
        return textwrap.dedent(self.text)


def inserted_lines(insertions: Sequence[Insertion]) -> tuple[int, ...]:
    """Return the lines that the insertions of one file, in line order, have in the patched file."""
    found: list[int] = []
    for insertion in insertions:
        first = insertion.line + len(found)
        found += range(first, first + len(insertion.lines))
    return tuple(found)


def guarded_call(function: str, *arguments: str) -> str:
    """Return the one form that an inserted statement has: nothing but a None test while the tap is off."""
    return f"if {GATE_NAME} is not None:\n{_INDENT}{GATE_NAME}.{function}({', '.join(arguments)})"


def indented(text: str, indentation: str) -> str:
    """Return a statement below others that are indented so, each of its lines as SGLang's formatter leaves it."""
    step = "\t" if "\t" in indentation else _INDENT
    lines = [indentation + line.replace(_INDENT, step) for line in text.split("\n")]
    return "\n".join(part for line in lines for part in _broken(line, step))


def _broken(line: str, step: str) -> Sequence[str]:
    """Break a call that is too long: its arguments on a line of their own, or a line for each."""
    head, bracket, rest = line.partition("(")
    if len(line) <= MAX_LINE or not bracket:
        return (line,)
    inner = line[: len(line) - len(line.lstrip())] + step
    arguments, end = inner + rest.removesuffix(")"), inner.removesuffix(step) + ")"
    if len(arguments) <= MAX_LINE:
        return (head + bracket, arguments, end)
    return (head + bracket, *(f"{inner}{each.strip()}," for each in arguments.split(",")), end)
