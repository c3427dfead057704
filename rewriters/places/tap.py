"""Tap: take the states of a batch at the one place that every model's forward ends in."""

from dataclasses import dataclass
from pathlib import PurePosixPath

import libcst as cst
from libcst import matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.rewriters.places.insertion import Insertion, guarded_call
from auxtap.rewriters.places.syntax import ParsedFile, ParsedTree, Statement, parameters

_HIDDEN, _AUX, _BATCH_CLASS = "hidden_states", "aux_hidden_states", "ForwardBatch"


@dataclass(frozen=True)
class TapRewriter:
    """Insert the call where the logits processor still holds the forward batch."""

    path: PurePosixPath = SRT_ROOT / "layers/logits_processor.py"
    kind: str = "tap"
    scope: str = "LogitsProcessor.forward"

    def is_needed(self, files: ParsedTree) -> bool:
        """Tell that every tree needs it."""
        return True

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the place before the test whether the metadata is a forward batch.

        Nothing but assignments of None to new names may stand before it: the test replaces the forward batch.

        Raises:
            PatchError: that test is missing, stands twice or comes too late, or a parameter has another name.
        """
        parsed = files.parsed(self.kind, self.path)
        function = parsed.function(self.kind, self.scope)
        names = [parameter.name for parameter in parameters(function)]
        for name in (_HIDDEN, _AUX):
            if name not in names:
                raise parsed.refuse(self.kind, self.scope, f"a parameter {name}", f"found {', '.join(names)}")
        test = m.If(
            test=m.Call(
                func=m.Name("isinstance"),
                args=[m.Arg(m.OneOf(*(m.Name(name) for name in names))), m.Arg(m.Name(_BATCH_CLASS))],
            )
        )
        body = parsed.body(function)
        found = [statement for statement in body if m.matches(statement, test)]
        anchor = f"the test whether a parameter is a {_BATCH_CLASS}"
        statement = parsed.single(self.kind, self.scope, anchor, found, body)
        self._require_first(parsed, names, body, statement, anchor)
        text = guarded_call("tap", names[0], _HIDDEN, _AUX, _tested_name(statement))
        return parsed.insert_before(statement, kind=self.kind, scope=self.scope, anchor=f"before {anchor}", text=text)

    def _require_first(
        self, parsed: ParsedFile, names: list[str], body: tuple[Statement, ...], statement: Statement, anchor: str
    ) -> None:
        text = m.SimpleStatementLine(body=[m.Expr(m.SimpleString() | m.ConcatenatedString())])
        target = m.AssignTarget(m.Name(m.MatchIfTrue(lambda name: name not in names)))
        nothing = m.SimpleStatementLine(body=[m.Assign(targets=[target], value=m.Name("None"))])
        before = [other for other in body[: body.index(statement)] if not m.matches(other, m.OneOf(text, nothing))]
        if before:
            found = f"found other statements before it, from line {parsed.first_line(before[0])}"
            raise parsed.refuse(self.kind, self.scope, f"{anchor} as the first statement", found)


STATEMENT = TapRewriter


def _tested_name(statement: Statement) -> str:
    test = statement.test if isinstance(statement, cst.If) else None
    value = test.args[0].value if isinstance(test, cst.Call) else None
    assert isinstance(value, cst.Name)
    return value.value
