"""Loop: take what enters each block of a model that has no capture code of its own."""

from dataclasses import dataclass
from pathlib import PurePosixPath

import libcst as cst
from libcst import matchers as m

from auxtap.rewriters.backbones.backbones import BackboneSurvey, LoopFunction, survey_backbones
from auxtap.rewriters.places.insertion import Insertion, guarded_call
from auxtap.rewriters.places.syntax import ParsedFile, ParsedTree, Statement


@dataclass(frozen=True)
class LoopRewriter:
    """Insert the call as the first statement of every round."""

    path: PurePosixPath
    kind: str = "loop"

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the place before the first statement of the loop's body.

        Raises:
            PatchError: the file has not exactly one loop that can be tapped.
        """
        parsed = files.parsed(self.kind, self.path)
        loop = single_loop(self.kind, parsed, survey_backbones(parsed.data))
        function = parsed.function(self.kind, loop.scope)
        anchor = "the first statement of a round of the decoder loop"
        body = self._body(parsed, function, loop)
        call, batch = loop.plain.call, loop.batches[0]
        names = (call.index, call.hidden, *(() if call.residual is None else (call.residual,)))
        text = guarded_call("block" if call.residual is None else "block_sum", loop.plain.owner, *names, batch)
        return parsed.insert_before(body[0], kind=self.kind, scope=loop.scope, anchor=f"before {anchor}", text=text)

    def _body(self, parsed: ParsedFile, function: cst.FunctionDef, loop: LoopFunction) -> list[Statement]:
        line = loop.plain.loop_line
        found = [node for node in parsed.body(function) if m.matches(node, m.For()) and parsed.first_line(node) == line]
        statement = parsed.single(self.kind, loop.scope, "the decoder loop", found, parsed.body(function))
        block = statement.body if isinstance(statement, cst.For) else None
        body = (
            [node for node in block.body if isinstance(node, Statement)] if isinstance(block, cst.IndentedBlock) else []
        )
        if not body:
            raise parsed.refuse(self.kind, loop.scope, "a loop with a body of its own lines", "found it on one line")
        return body


@dataclass(frozen=True)
class LoopStageRewriter:
    """Insert the call before the stage exit behind such a loop, where there is one."""

    path: PurePosixPath
    kind: str = "stage"

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the place before the only stage exit behind the loop.

        Raises:
            PatchError: there is no such exit or more than one, or a return may leave it out.
        """
        parsed = files.parsed(self.kind, self.path)
        loop = single_loop(self.kind, parsed, survey_backbones(parsed.data))
        body = parsed.body(parsed.function(self.kind, loop.scope))
        lines = [found.line for found in loop.exits]
        found = [node for node in body if m.matches(node, m.If()) and parsed.first_line(node) in lines]
        anchor = "the stage exit behind the decoder loop"
        statement = parsed.single(self.kind, loop.scope, anchor, found, body)
        parsed.refuse_early_leave(self.kind, loop.scope, anchor, statement, body)
        text = guarded_call("stage_of_blocks", loop.plain.owner, loop.batches[0])
        return parsed.insert_before(statement, kind=self.kind, scope=loop.scope, anchor=f"before {anchor}", text=text)


def single_loop(kind: str, parsed: ParsedFile, survey: BackboneSurvey) -> LoopFunction:
    """Return the one loop of a file that can be tapped.

    Raises:
        PatchError: there is none, or more than one; it says what is in the way.
    """
    if len(survey.loops) == 1:
        return survey.loops[0]
    reasons = "; ".join(f"{name}: {reason}" for name, reason in survey.refused.items())
    found = f"found {len(survey.loops)}" + (f" ({reasons})" if reasons else "")
    raise parsed.refuse(kind, "", "one decoder loop that can be tapped at its top", found)
