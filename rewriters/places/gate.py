"""The gate: one import a file, which binds the tap to None unless the server was started with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import libcst as cst
from libcst import matchers as m

from auxtap.rewriters.places.insertion import TAP_PACKAGE, Insertion
from auxtap.rewriters.places.syntax import ParsedFile, ParsedTree, Statement
from auxtap.tracer.source.names import GATE_NAME

_IMPORT = m.SimpleStatementLine(body=[m.AtLeastN(m.Import() | m.ImportFrom(), n=1)])
_TEXT = m.SimpleStatementLine(body=[m.Expr(m.SimpleString() | m.ConcatenatedString())])
GATE_LINE = f"from {TAP_PACKAGE}.gate import tap as {GATE_NAME}"


@dataclass(frozen=True)
class GateRewriter:
    """Bind the gate in one file, after the last of the imports that the module begins with."""

    path: PurePosixPath
    kind: str = "gate"

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the gate line's place.

        Raises:
            PatchError: the module does not begin with imports.
        """
        parsed = files.parsed(self.kind, self.path)
        anchor = "after the imports that the module begins with"
        imports = _leading_imports(parsed)
        if not imports:
            raise parsed.refuse(self.kind, "", "the imports that the module begins with", "found none")
        return parsed.insert_after(imports[-1], kind=self.kind, scope="", anchor=anchor, text=GATE_LINE)


def _leading_imports(parsed: ParsedFile) -> Sequence[Statement]:
    imports: list[Statement] = []
    for statement in parsed.leading_statements():
        if isinstance(statement, cst.SimpleStatementLine) and m.matches(statement, _IMPORT):
            imports.append(statement)
        elif not m.matches(statement, _TEXT):
            break
    return imports
