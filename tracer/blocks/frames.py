"""Where one is while code is followed: the functions that were gone into, and objections with their place."""

from typing import NoReturn

import libcst as cst

from auxtap.tracer.blocks.naming import FoundFunction, Names
from auxtap.tracer.report.readings import Objection, SourceLine
from auxtap.tracer.source.fragments import Fragment

_MAX_FRAMES = 12


class ObjectedError(Exception):
    """Something on the way is not of a known form."""

    def __init__(self, objection: Objection) -> None:
        super().__init__(objection.reason)
        self.objection = objection


class Frames:
    """Keeps the functions that are followed at the moment, the outermost first."""

    def __init__(self, names: Names) -> None:
        self.lookup = names
        self._frames: list[FoundFunction] = []

    def enter(self, function: FoundFunction) -> None:
        """Go into a function."""
        if len(self._frames) > _MAX_FRAMES or [frame.node for frame in self._frames].count(function.node) > 1:
            self.refuse(function.node, "it calls itself, or leads too far")
        self._frames.append(function)

    def leave(self) -> None:
        """Come back out of the function."""
        self._frames.pop()

    @property
    def frame(self) -> FoundFunction:
        """The function that is followed."""
        return self._frames[-1]

    @property
    def is_outermost(self) -> bool:
        """Whether that is the block's own forward."""
        return len(self._frames) == 1

    @property
    def fragment(self) -> Fragment:
        """The fragment of that function."""
        return self.frame.fragment

    def place(self, node: cst.CSTNode) -> SourceLine:
        """Return the line on which a node of the followed function begins."""
        line = self.fragment.line_of(node)
        code = self.lookup.index.source(self.frame.file).code_at(line)
        return SourceLine(self.frame.file, line, self.frame.scope, code)

    def refuse(self, node: cst.CSTNode, reason: str) -> NoReturn:
        """End following with an objection.

        Raises:
            ObjectedError: always.
        """
        raise ObjectedError(Objection(self.place(node), reason))

    def missing(self, function: FoundFunction) -> Objection:
        """Return the objection that a way through a function does not reach the place that takes."""
        line = function.fragment.line_of(function.node)
        code = self.lookup.index.source(function.file).code_at(line)
        place = SourceLine(function.file, line, function.scope, code)
        return Objection(place, "on a way through it the collector that it is given takes nothing")
