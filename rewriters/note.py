"""Note: remember which requests a forward batch holds, while both are at hand."""

from dataclasses import dataclass
from pathlib import PurePosixPath

import libcst as cst
from libcst import matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.rewriters.insertion import Insertion, guarded_call
from auxtap.rewriters.syntax import Parameter, ParsedFile, ParsedTree, Statement, annotated_fields, parameters

_BATCHES = SRT_ROOT / "managers/schedule_batch.py"
_BATCH_CLASS = "ModelWorkerBatch"
_REQUESTS = "reqs"


@dataclass(frozen=True)
class NoteRewriter:
    """Insert the call after the statement that makes the forward batch."""

    path: PurePosixPath = SRT_ROOT / "model_executor/forward_batch_info.py"
    kind: str = "note"
    scope: str = "ForwardBatch.init_new"

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the place after `<name> = cls(...)`.

        Raises:
            PatchError: that statement is missing or stands twice, or the batch that it reads does not know its
                requests (before SGLang 0.5.6, and from 0.5.13 on, where it is of another class).
        """
        parsed = files.parsed(self.kind, self.path)
        function = parsed.function(self.kind, self.scope)
        own_class, batch = self._parameters(parsed, function)
        self._require_requests(files, parsed, batch)
        body = parsed.body(function)
        making = m.Assign(targets=[m.AssignTarget(m.Name())], value=m.Call(func=m.Name(own_class)))
        line = m.SimpleStatementLine(body=[m.ZeroOrMore(), making, m.ZeroOrMore()])
        anchor = f"the assignment of a call of {own_class}"
        found = [statement for statement in body if m.matches(statement, line)]
        statement = parsed.single(self.kind, self.scope, anchor, found, body)
        text = guarded_call("note", _made_name(statement), batch.name)
        return parsed.insert_after(statement, kind=self.kind, scope=self.scope, anchor=f"after {anchor}", text=text)

    def _parameters(self, parsed: ParsedFile, function: cst.FunctionDef) -> tuple[str, Parameter]:
        listed = parameters(function)
        if len(listed) < 2:
            raise parsed.refuse(self.kind, self.scope, "parameters for the class and the batch", f"found {len(listed)}")
        return listed[0].name, listed[1]

    def _require_requests(self, files: ParsedTree, parsed: ParsedFile, batch: Parameter) -> None:
        if batch.annotation != _BATCH_CLASS:
            found = f"found {batch.name}: {batch.annotation or 'no annotation'}"
            raise parsed.refuse(self.kind, self.scope, f"a batch of class {_BATCH_CLASS}", found)
        if _REQUESTS not in annotated_fields(files.files.get(_BATCHES, b""), _BATCH_CLASS):
            found = f"found no such field in {_BATCHES} ({_BATCH_CLASS})"
            raise parsed.refuse(self.kind, self.scope, f"a batch that lists its requests ({_REQUESTS})", found)


def _made_name(statement: Statement) -> str:
    """Return the first name that the statement's line assigns."""
    first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    target = first.targets[0].target if isinstance(first, cst.Assign) else None
    return target.value if isinstance(target, cst.Name) else ""
