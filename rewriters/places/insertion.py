"""What a rewriter proposes: text at a place, never a change of what stands there."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from auxtap.tracer.source.names import GATE_NAME

TAP_PACKAGE = "sglang.srt.auxtap"


@dataclass(frozen=True)
class Insertion:
    """One line to insert into a file.

    `line` is the 1-based line of the original file before which `text` is put (`text` has its indentation and no
    newline; `newline` is the file's at that place). `scope` is the qualified name of the enclosing function, empty
    at module level; `anchor` says in words which statement the place hangs on.
    """

    kind: str
    path: PurePosixPath
    scope: str
    anchor: str
    line: int
    text: str
    newline: str

    @property
    def data(self) -> bytes:
        """The bytes that are inserted."""
        return (self.text + self.newline).encode()


def guarded_call(function: str, *arguments: str) -> str:
    """Return the one form that an inserted statement has: nothing but a None test while the tap is off."""
    return f"if {GATE_NAME} is not None: {GATE_NAME}.{function}({', '.join(arguments)})"
