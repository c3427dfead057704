"""Stage: take the states of a pipeline stage before its exit drops them."""

from dataclasses import dataclass
from pathlib import PurePosixPath

import libcst as cst
from libcst import matchers as m

from auxtap.rewriters.places.insertion import Insertion, guarded_call
from auxtap.rewriters.places.syntax import ParsedFile, ParsedTree, Statement
from auxtap.tracer.report.readings import Reading


@dataclass(frozen=True)
class StageRewriter:
    """Insert the call before the stage exit of the function that fills the accumulator."""

    path: PurePosixPath
    kind: str = "stage"

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the place before the only stage exit behind a capture loop, with that function's own names.

        Raises:
            PatchError: there is no such exit, or more than one, or its class is objected to, or the function has not
                exactly one forward batch, or binds it anew.
        """
        parsed = files.parsed(self.kind, self.path)
        reading = self._reading(parsed, files)
        if len(reading.batches) != 1:
            found = f"found {len(reading.batches)}: {', '.join(reading.batches) or 'none'}"
            raise parsed.refuse(self.kind, reading.scope, "one parameter of class ForwardBatch", found)
        anchor = "the stage exit behind the capture loop"
        text = guarded_call("stage", reading.owner, reading.accumulator, reading.batches[0])
        return insert_before_exit(self.kind, parsed, reading, anchor, text)

    def _reading(self, parsed: ParsedFile, files: ParsedTree) -> Reading:
        ours = [
            reading for reading in files.readings.readings if reading.file == self.path and reading.kind == "native"
        ]
        with_exits = [reading for reading in ours if reading.exits and not reading.objections]
        objections = [objection for reading in ours for objection in reading.objections]
        if len(with_exits) == 1 and len(with_exits[0].exits) == 1 and not objections:
            return with_exits[0]
        scopes = list(dict.fromkeys(reading.scope for reading in ours))
        exits = [f"{line} ({reading.scope})" for reading in ours for line in reading.exits]
        found = f"found {', '.join(scopes) or 'no function'} capturing and stage exits at {', '.join(exits) or 'none'}"
        reasons = "; ".join(f"line {item.at.line}: {item.reason}: {item.at.code}" for item in objections)
        looked_for = (
            "one stage exit (a return unless it is the last rank) behind the loop of one function that captures"
        )
        raise parsed.refuse(self.kind, scopes[0] if len(scopes) == 1 else "", looked_for, reasons or found)


def insert_before_exit(kind: str, parsed: ParsedFile, reading: Reading, anchor: str, text: str) -> Insertion:
    """Propose a line before the only stage exit of a reading.

    Raises:
        PatchError: a return may leave it out, or the forward batch is bound anew before it.
    """
    body = parsed.body(parsed.function(kind, reading.scope))
    found = [node for node in body if m.matches(node, m.If()) and parsed.first_line(node) in reading.exits]
    statement = parsed.single(kind, reading.scope, f"{anchor} at the function's own level", found, body)
    parsed.refuse_early_leave(kind, reading.scope, anchor, statement, body)
    parsed.refuse_rebinding(kind, reading.scope, reading.batches[0], body[: body.index(statement)])
    return parsed.insert_before(statement, kind=kind, scope=reading.scope, anchor=f"before {anchor}", text=text)


def body_of_loop(kind: str, parsed: ParsedFile, reading: Reading) -> list[Statement]:
    """Return the statements of a round of a reading's loop.

    Raises:
        PatchError: they stand on the line of the loop.
    """
    statements = parsed.body(parsed.function(kind, reading.scope))
    found = [node for node in statements if m.matches(node, m.For()) and parsed.first_line(node) == reading.loop_line]
    statement = parsed.single(kind, reading.scope, "the decoder loop", found, statements)
    block = statement.body if isinstance(statement, cst.For) else None
    body = [node for node in block.body if isinstance(node, Statement)] if isinstance(block, cst.IndentedBlock) else []
    if not body:
        raise parsed.refuse(kind, reading.scope, "a loop with a body of its own lines", "found it on one line")
    return body
