"""Rank: keep which data-parallel replica a runner belongs to, where it is told and forgets it (up to 0.5.11)."""

from dataclasses import dataclass
from pathlib import PurePosixPath

import libcst as cst
from libcst import matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.rewriters.places.insertion import Insertion, guarded_call
from auxtap.rewriters.places.syntax import ParsedTree, parameters

_RUNNER, _INIT = "ModelRunner", "__init__"
_RANK = "dp_rank"


@dataclass(frozen=True)
class RankRewriter:
    """Insert the call as the first statement of the runner's `__init__`, before anything can bind the name anew."""

    path: PurePosixPath = SRT_ROOT / "model_executor/model_runner.py"
    kind: str = "rank"
    scope: str = f"{_RUNNER}.{_INIT}"

    def is_needed(self, files: ParsedTree) -> bool:
        """Tell whether the runner is given the rank and does not keep it; older ones are not even given it."""
        found = [self._keeps(function) for function in files.parsed(self.kind, self.path).methods(_RUNNER, _INIT)]
        return False in found

    def _keeps(self, function: cst.FunctionDef) -> bool | None:
        names = [parameter.name for parameter in parameters(function)]
        if _RANK not in names:
            return None
        return bool(m.findall(function.body, m.AssignTarget(m.Attribute(m.Name(names[0]), m.Name(_RANK)))))

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the place before the first statement of `__init__`, its docstring left aside.

        Raises:
            PatchError: the runner has not exactly one `__init__`, or nothing stands in it.
        """
        parsed = files.parsed(self.kind, self.path)
        function = parsed.function(self.kind, self.scope)
        text = m.SimpleStatementLine(body=[m.Expr(m.SimpleString() | m.ConcatenatedString())])
        body = [statement for statement in parsed.body(function) if not m.matches(statement, text)]
        anchor = "the first statement"
        first = parsed.single(self.kind, self.scope, anchor, body[:1], body)
        call = guarded_call("rank", parameters(function)[0].name, _RANK)
        return parsed.insert_before(first, kind=self.kind, scope=self.scope, anchor=f"before {anchor}", text=call)


STATEMENT = RankRewriter
