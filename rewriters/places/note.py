"""Note: remember which requests a forward batch holds, while both are at hand."""

from dataclasses import dataclass
from pathlib import PurePosixPath

import libcst as cst
from libcst import matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.rewriters.places.insertion import Insertion, guarded_call
from auxtap.rewriters.places.syntax import Parameter, ParsedFile, ParsedTree, Statement, annotated_fields, parameters

# The class of the batch that `init_new` reads: the worker's own up to 0.5.12, the scheduler's from 0.5.13 on.
BATCH_CLASSES = ("ModelWorkerBatch", "ScheduleBatch")
BATCHES = SRT_ROOT / "managers/schedule_batch.py"
_REQUESTS = "reqs"


@dataclass(frozen=True)
class NoteRewriter:
    """Insert the call after the statement that makes the forward batch."""

    path: PurePosixPath = SRT_ROOT / "model_executor/forward_batch_info.py"
    kind: str = "note"
    scope: str = "ForwardBatch.init_new"

    def is_needed(self, files: ParsedTree) -> bool:
        """Tell that every tree needs it."""
        return True

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the place after `<name> = cls(...)`.

        Raises:
            PatchError: that statement is missing, stands twice or may be left out by a return, the batch that it
                reads is of an unknown class, or another batch takes the place of either.
        """
        parsed = files.parsed(self.kind, self.path)
        function = parsed.function(self.kind, self.scope)
        own_class, batch = self._parameters(parsed, function)
        if batch.annotation not in BATCH_CLASSES:
            found = f"found {batch.name}: {batch.annotation or 'no annotation'}"
            raise parsed.refuse(self.kind, self.scope, f"a batch of class {' or '.join(BATCH_CLASSES)}", found)
        body = parsed.body(function)
        making = m.Assign(targets=[m.AssignTarget(m.Name())], value=m.Call(func=m.Name(own_class)))
        line = m.SimpleStatementLine(body=[m.ZeroOrMore(), making, m.ZeroOrMore()])
        anchor = f"the assignment of a call of {own_class}"
        found_lines = [statement for statement in body if m.matches(statement, line)]
        statement = parsed.single(self.kind, self.scope, anchor, found_lines, body)
        parsed.refuse_early_leave(self.kind, self.scope, anchor, statement, body)
        made = _made_name(statement)
        at = body.index(statement)
        parsed.refuse_rebinding(self.kind, self.scope, batch.name, body[: at + 1])
        parsed.refuse_rebinding(self.kind, self.scope, made, body[at:], but=statement)
        text = guarded_call("note", made, batch.name)
        return parsed.insert_after(statement, kind=self.kind, scope=self.scope, anchor=f"after {anchor}", text=text)

    def batch_class(self, files: ParsedTree) -> str:
        """Return the class of the batch that `init_new` reads, as its annotation says."""
        parsed = files.parsed(self.kind, self.path)
        return self._parameters(parsed, parsed.function(self.kind, self.scope))[1].annotation

    def lists_requests(self, files: ParsedTree) -> bool:
        """Tell whether that batch lists its requests; before SGLang 0.5.6 it does not."""
        return _REQUESTS in annotated_fields(files.files.get(BATCHES, b""), self.batch_class(files))

    def _parameters(self, parsed: ParsedFile, function: cst.FunctionDef) -> tuple[str, Parameter]:
        listed = parameters(function)
        if len(listed) < 2:
            raise parsed.refuse(self.kind, self.scope, "parameters for the class and the batch", f"found {len(listed)}")
        return listed[0].name, listed[1]


STATEMENT = NoteRewriter


def _made_name(statement: Statement) -> str:
    """Return the first name that the statement's line assigns."""
    first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    target = first.targets[0].target if isinstance(first, cst.Assign) else None
    return target.value if isinstance(target, cst.Name) else ""
