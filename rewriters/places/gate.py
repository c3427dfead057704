"""The gate: one import a file, which binds the tap to None unless the server was started with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import libcst as cst
from libcst import matchers as m
from libcst.helpers import get_absolute_module_for_import

from auxtap.rewriters.places.insertion import TAP_PACKAGE, Insertion
from auxtap.rewriters.places.syntax import ParsedFile, ParsedTree, Statement
from auxtap.tracer.source.names import GATE_NAME

_IMPORT = m.SimpleStatementLine(body=[m.AtLeastN(m.Import() | m.ImportFrom(), n=1)])
_TEXT = m.SimpleStatementLine(body=[m.Expr(m.SimpleString() | m.ConcatenatedString())])
# The only comment of the patch; with it the line has 84 characters of the 88 that the formatter leaves alone.
GATE_LINE = f"from {TAP_PACKAGE}.gate import tap as {GATE_NAME}  # hidden-state tap; None when off"


@dataclass(frozen=True)
class GateRewriter:
    """Bind the gate in one file, where SGLang's import sorter (isort) keeps it; `line` is `from MODULE import ...`."""

    path: PurePosixPath
    kind: str = "gate"
    line: str = GATE_LINE

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the gate line's place: among the imports of SGLang's own modules that the file begins with.

        Raises:
            PatchError: the module does not begin with imports.
        """
        parsed = files.parsed(self.kind, self.path)
        imports = _leading_imports(parsed)
        if not imports:
            raise parsed.refuse(self.kind, "", "the imports that the module begins with", "found none")
        anchor = "in order among the imports that the module begins with"
        own = [statement for statement in imports if _own_module(statement)]
        earlier = [statement for statement in own if _own_module(statement) < self.line.split()[1]]
        if own and not earlier and not parsed.is_behind_mark(own[0]):
            return parsed.insert_before(own[0], kind=self.kind, scope="", anchor=anchor, text=self.line)
        last = (earlier or own[:1] or imports)[-1]
        return parsed.insert_after(last, kind=self.kind, scope="", anchor=anchor, text=self.line)


def _leading_imports(parsed: ParsedFile) -> Sequence[Statement]:
    imports: list[Statement] = []
    for statement in parsed.leading_statements():
        if isinstance(statement, cst.SimpleStatementLine) and m.matches(statement, _IMPORT):
            imports.append(statement)
        elif not m.matches(statement, _TEXT):
            break
    return imports


def _own_module(statement: Statement) -> str:
    """Return the module of SGLang's that a line takes names from; empty for another line."""
    first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    name = get_absolute_module_for_import(None, first) if isinstance(first, cst.ImportFrom) else None
    root = TAP_PACKAGE.partition(".")[0]
    return name if name is not None and name.partition(".")[0] == root else ""
