"""Attach: give the worker's batch its requests, where it does not list them (before SGLang 0.5.6)."""

from dataclasses import dataclass
from pathlib import PurePosixPath

import libcst as cst
from libcst import matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.rewriters.places.insertion import Insertion, guarded_call
from auxtap.rewriters.places.note import BATCH_CLASSES, NoteRewriter
from auxtap.rewriters.places.syntax import ParsedTree, Statement, parameters

_CONVERT = "get_model_worker_batch"
_GENERATES = "is_generation"


@dataclass(frozen=True)
class AttachRewriter:
    """Insert the call after the statement that makes the worker's batch of a generating server."""

    path: PurePosixPath = SRT_ROOT / "managers/scheduler.py"
    kind: str = "attach"
    scope: str = "Scheduler.run_batch"

    def is_needed(self, files: ParsedTree) -> bool:
        """Tell whether the worker's batch, if it is one that is known, does not list its requests."""
        note = NoteRewriter()
        return note.batch_class(files) in BATCH_CLASSES and not note.lists_requests(files)

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the place after `<name> = <batch>.get_model_worker_batch()` within the test for generation.

        Raises:
            PatchError: that statement is missing or stands twice there, or the test does.
        """
        parsed = files.parsed(self.kind, self.path)
        function = parsed.function(self.kind, self.scope)
        names = [parameter.name for parameter in parameters(function)]
        if len(names) < 2:
            raise parsed.refuse(self.kind, self.scope, "parameters for the scheduler and the batch", f"found {names}")
        scheduler, batch = names[:2]
        test = m.If(test=m.Attribute(m.Name(scheduler), m.Name(_GENERATES)))
        body = parsed.body(function)
        tests = [statement for statement in body if m.matches(statement, test)]
        generating = parsed.single(self.kind, self.scope, f"the test of {_GENERATES}", tests, body)
        value = m.Call(func=m.Attribute(m.Name(batch), m.Name(_CONVERT)))
        making = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(m.Name())], value=value)])
        anchor = f"the assignment of {batch}.{_CONVERT}() within the test of {_GENERATES}"
        assert isinstance(generating, cst.If)
        found = [node for node in m.findall(generating.body, making) if isinstance(node, cst.SimpleStatementLine)]
        statement = parsed.single(self.kind, self.scope, anchor, found, body)
        text = guarded_call("attach", _made_name(statement), batch)
        return parsed.insert_after(statement, kind=self.kind, scope=self.scope, anchor=f"after {anchor}", text=text)


STATEMENT = AttachRewriter


def _made_name(statement: Statement) -> str:
    first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    target = first.targets[0].target if isinstance(first, cst.Assign) else None
    return target.value if isinstance(target, cst.Name) else ""
