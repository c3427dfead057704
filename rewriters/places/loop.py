"""Loop: take what enters each block of a model that has no capture code of its own."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from auxtap.rewriters.places.insertion import Insertion, guarded_call
from auxtap.rewriters.places.stage import body_of_loop, insert_before_exit
from auxtap.rewriters.places.syntax import ParsedFile, ParsedTree
from auxtap.tracer.report.readings import Reading


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
        loop = single_loop(self.kind, parsed, files)
        anchor = "the first statement of a round of the decoder loop"
        body = body_of_loop(self.kind, parsed, loop)
        names = (loop.index, loop.hidden, *(() if loop.residual is None else (loop.residual,)), loop.batches[0])
        text = guarded_call("block" if loop.residual is None else "block_sum", loop.owner, *names)
        return parsed.insert_before(body[0], kind=self.kind, scope=loop.scope, anchor=f"before {anchor}", text=text)


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
        loop = single_loop(self.kind, parsed, files)
        text = guarded_call("stage_of_blocks", loop.owner, loop.batches[0])
        return insert_before_exit(self.kind, parsed, loop, "the stage exit behind the decoder loop", text)


def single_loop(kind: str, parsed: ParsedFile, files: ParsedTree) -> Reading:
    """Return the one loop of a file that can be tapped.

    Raises:
        PatchError: there is none, or more than one; it says what is in the way.
    """
    loops = [reading for reading in files.readings.usable("loop") if reading.file == parsed.path]
    if len(loops) == 1:
        return loops[0]
    ours = (reading for reading in files.readings.readings if reading.file == parsed.path)
    reasons = "; ".join(f"{each.class_name}: {item.reason}" for each in ours for item in each.objections[:1])
    found = f"found {len(loops)}" + (f" ({reasons})" if reasons else "")
    raise parsed.refuse(kind, "", "one decoder loop that can be tapped at its top", found)
