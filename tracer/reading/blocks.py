"""Ask what the function level cannot know: what classes, collectors, marks and the inside of blocks do."""

from dataclasses import dataclass
from pathlib import PurePosixPath

import libcst.matchers as m

from auxtap.tracer.blocks.class_forms import class_objections, function_objections
from auxtap.tracer.blocks.collectors import read_collector
from auxtap.tracer.blocks.hand_in import BlockReader
from auxtap.tracer.blocks.handing import Collector, HandIn, HandInReading
from auxtap.tracer.blocks.marks import MarkReading, read_mark
from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.report.readings import Objection, SourceLine
from auxtap.tracer.source.bodies import statements_of


@dataclass(frozen=True, eq=False)
class BlockAnswers:
    """Answers about the classes of one tree."""

    index: ClassIndex
    reader: BlockReader

    @classmethod
    def of(cls, index: ClassIndex) -> "BlockAnswers":
        """Return the answers about a tree."""
        return cls(index, BlockReader(index))

    def collector(self, name: str, at: SourceLine) -> Collector | Objection:
        """Return what a class of collectors does with what it is given."""
        return read_collector(self.reader.names, at.file, name, at)

    def hand_in(self, hand_in: HandIn) -> HandInReading:
        """Follow a collector into the blocks that it is handed to."""
        return self.reader.read(hand_in)

    def of_class(self, path: PurePosixPath, name: str) -> tuple[Objection, ...]:
        """Return what is objected to in a backbone beside the body of its forward."""
        found = self.index.classes_of(path)[name]
        forward = self.reader.names.own(path, name, "forward")
        more = () if forward is None else function_objections(self.reader.names, forward)
        return (*class_objections(self.reader.names, found), *more)

    def is_sum(self, path: PurePosixPath, name: str) -> bool:
        """Tell whether a function ends by returning the sum of its first two parameters, or a copy of the only one."""
        found = self.reader.names.find_function(name, path)
        if found is None or len(found.node.params.params) < 2:
            return False
        first, second = (m.Name(item.name.value) for item in found.node.params.params[:2])
        missing = m.Comparison(left=second, comparisons=[m.ComparisonTarget(m.Is(), m.Name("None"))])
        alone = m.Call(func=m.Attribute(value=first, attr=m.Name("clone")), args=[])
        both = m.BinaryOperation(left=first, operator=m.Add(), right=second)
        whole = m.Return(value=m.IfExp(test=missing, body=alone, orelse=both))
        return m.matches(statements_of(found.node.body)[-1], m.SimpleStatementLine(body=[whole]))

    def mark(self, path: PurePosixPath, name: str, mark: str) -> MarkReading:
        """Return who marks the blocks of a backbone, and what is objected to in how."""
        return read_mark(self.reader.names, self.index.classes_of(path)[name], mark)
