"""A function that runs decoder blocks, with what it takes to read and to cite it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from auxtap.tracer.reading.loops import DecoderLoop, decoder_loops
from auxtap.tracer.reading.mentions import attribute_of, conjuncts
from auxtap.tracer.report.readings import Kind, Objection, Reading, SourceLine
from auxtap.tracer.source.bodies import statements_of
from auxtap.tracer.source.fragments import Fragment, SourceFile
from auxtap.tracer.source.walk import find

_BATCH_NAME, _BATCH_CLASS = "forward_batch", "ForwardBatch"
_TWO_BATCHES = "can_run_tbo"


@dataclass(frozen=True, eq=False)
class Forward:
    """A function of a class, with what it takes to read and to cite it; `made` says what self's attributes are of."""

    source: SourceFile
    fragment: Fragment
    class_name: str
    function: cst.FunctionDef
    made: Mapping[str, frozenset[str]]

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.name.value

    @cached_property
    def parameters(self) -> tuple[cst.Param, ...]:
        """Its named parameters, self included."""
        listed = self.function.params
        return (*listed.posonly_params, *listed.params, *listed.kwonly_params)

    @cached_property
    def owner(self) -> str:
        """The name of self."""
        return self.parameters[0].name.value if self.parameters else ""

    @cached_property
    def body(self) -> tuple[cst.CSTNode, ...]:
        """The statements of its own level."""
        return statements_of(self.function.body)

    @cached_property
    def batches(self) -> tuple[str, ...]:
        """The parameters of class ForwardBatch."""
        return tuple(item.name.value for item in self.parameters if _is_batch(item))

    @cached_property
    def loops(self) -> list[DecoderLoop]:
        """The loops in which blocks run."""
        return decoder_loops(self.function.body, self.owner)

    def around(self, statement: cst.CSTNode) -> tuple[tuple[cst.CSTNode, ...], tuple[cst.CSTNode, ...]]:
        """Return the statements of the function's own level before and behind one of them."""
        place = self.body.index(statement)
        return self.body[:place], self.body[place + 1 :]

    def cite(self, node: cst.CSTNode) -> SourceLine:
        """Return the line on which a node begins."""
        line = self.fragment.line_of(node)
        return SourceLine(self.source.path, line, f"{self.class_name}.{self.name}", self.source.code_at(line))

    def object(self, node: cst.CSTNode, reason: str) -> Objection:
        """Return an objection to a node."""
        return Objection(self.cite(node), reason)

    def two_batches(self, test: cst.BaseExpression) -> bool:
        """Tell whether a test holds only where two batches overlap, which is refused with the tap."""
        return any(attribute_of(part, name) == _TWO_BATCHES for part in conjuncts(test) for name in self.batches)

    def begin(self, kind: Kind, node: cst.CSTNode, objections: tuple[Objection, ...] = ()) -> Reading:
        """Return the reading of a loop, or of a whole function, before anything more is known of it."""
        return Reading(
            file=self.source.path,
            class_name=self.class_name,
            function=self.name,
            kind=kind,
            owner=self.owner,
            loop_line=self.fragment.line_of(node),
            batches=self.batches,
            objections=objections,
        )


def _is_batch(parameter: cst.Param) -> bool:
    if parameter.annotation is None:
        return parameter.name.value == _BATCH_NAME
    names = {item.value for item in find(parameter.annotation, cst.Name)} - {"None", "Optional"}
    texts = {str(item.raw_value) for item in find(parameter.annotation, cst.SimpleString)}
    return names | texts == {_BATCH_CLASS}
