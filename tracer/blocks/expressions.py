"""Follow expressions: each gives the ways on which it has a value, tests of what matters told apart."""

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.blocks.frames import Frames
from auxtap.tracer.blocks.values import (
    DERIVED,
    FALSE,
    NONE,
    OTHER,
    PENDING,
    STATE,
    STREAM,
    TENSORS,
    TRUE,
    Kind,
    Owed,
    Value,
    Way,
    decided,
    several,
)
from auxtap.tracer.source.walk import find, walk

Valued = list[tuple[Way, Value]]
# What says that the state is not whole: the block before left its sum to this one, or attention takes parts of rows.
_UNREDUCED, _SCATTERED = "_sglang_needs_allreduce_fusion", "input_scattered"
# What may be asked of a tensor without touching its values.
_ASKED = frozenset({"shape", "dtype", "device", "ndim", "m", _UNREDUCED, "is_cuda"})
# Labels: what a test of a gather gives, and a tuple of unknown length that has the residual at its end.
GATHERS, LAST = "gathers", "last"
# The label of a tensor whose rows were moved to where the compute of the block, or the producer, has them.
MOVED = "moved"
# What the producer of a waiting output does to the residual.
UPDATE = "update"
# What a communicator has for sequence parallelism is a communicator that has none itself (0.5.19, 0.5.20).
_SIBLING = "_sp_variant"
_CONSTANTS = {"None": NONE, "True": TRUE, "False": FALSE}
_WITHOUT_NONE = TENSORS | {Kind.DERIVED, Kind.COLLECTOR, Kind.TAKES, Kind.BATCH, Kind.STREAM, Kind.OBJECT, Kind.STORAGE}
_ROWS = m.Subscript(
    value=m.Attribute(attr=m.Name("shape")), slice=[m.SubscriptElement(slice=m.Index(value=m.Integer("0")))]
)


def _undecided(left: Value, right: Value) -> Value:
    # A gather allocates, so that its result may be kept (`move is gather_attention_tp`, 0.5.21).
    gathers = left.label == "input_move" and right.kind is Kind.NAME and right.label.startswith("gather")
    return Value(Kind.OTHER, label=GATHERS) if gathers else OTHER


class Expressions(Frames):
    """Evaluates expressions within the function that is followed at the moment."""

    def mentions(self, node: cst.CSTNode, way: Way) -> bool:
        """Tell whether a name below a node holds something of the stream."""
        return any(name.value in way.names and way.names[name.value].reaches_stream for name in find(node, cst.Name))

    def evaluate(self, node: cst.BaseExpression, way: Way) -> Valued:
        """Return the value of an expression, once for every way that it tells apart."""
        match node:
            case cst.Name():
                return [(way, self._named(node.value, way))]
            case cst.Attribute():
                name = node.attr.value
                owners = self.evaluate(node.value, way)
                return [each for after, owner in owners for each in self._asked(owner, name, after)]
            case cst.Call():
                return self.call(node, way)
            case cst.BooleanOperation():
                return list(self._joined(node, way))
            case cst.UnaryOperation(operator=cst.Not()):
                return [(after, self._negated(value)) for after, value in self.evaluate(node.expression, way)]
            case cst.Comparison():
                return self._compared(node, way)
            case cst.IfExp():
                return list(self._chosen(node, way))
            case cst.BinaryOperation():
                return self._added(node, way)
            case cst.Tuple() | cst.List():
                return self._listed(node, way)
            case cst.Subscript():
                return [(after, self._item(node, value)) for after, value in self.evaluate(node.value, way)]
            case cst.SimpleString():
                return [(way, Value(Kind.OTHER, label=str(node.evaluated_value), is_there=True))]
        if any(isinstance(item, cst.NamedExpr | cst.Await | cst.Yield) for item in walk(node)):
            self.refuse(node, "an expression of a form that is not known")
        return [(way, self._changed(node) if self.mentions(node, way) else OTHER)]

    def call(self, node: cst.Call, way: Way) -> Valued:
        """Return what a call gives; see `Calls`."""
        raise NotImplementedError

    def _changed(self, node: cst.CSTNode) -> Value:
        return Value(Kind.CHANGED, label=f"line {self.fragment.line_of(node)} changes it")

    def _named(self, name: str, way: Way) -> Value:
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        return way.names.get(name) or Value(Kind.NAME, label=name)

    def _asked(self, owner: Value, name: str, way: Way) -> Valued:
        """Return what an attribute holds; what says whether the state is whole yet is told apart."""
        owed: Owed = (
            "scatter" if name == _SCATTERED else "reduce" if name == _UNREDUCED and owner.kind is Kind.STATE else None
        )
        if owed is None:
            return [(way, self._attribute(owner, name, way))]
        return [(replace(way, owed=owed), TRUE), (way, FALSE)]

    def _attribute(self, owner: Value, name: str, way: Way) -> Value:
        match owner.kind:
            case Kind.STREAM if name == "residual":
                return NONE if way.has_residual is False else way.residual
            case Kind.STREAM if name == "pending":
                return NONE if way.has_pending is False else PENDING
            case Kind.BATCH:
                return STREAM if name == "residual_stream" else Value(Kind.OTHER, label=name)
            case Kind.PENDING if name == "value":
                return STATE
            case Kind.PENDING if name == UPDATE:
                return Value(Kind.OTHER, label=UPDATE)
            case Kind.PENDING if name not in ("complete", "for_boundary"):
                return OTHER
            case Kind.COLLECTOR:
                return Value(Kind.TAKES, label=name)
            case Kind.DERIVED | Kind.STORAGE:
                return OTHER if name in _ASKED else DERIVED
        if owner.kind in TENSORS:
            return OTHER if name in _ASKED else Value(Kind.CHANGED, label=f"it is read as .{name}")
        if name == _SIBLING and owner.label == _SIBLING:
            return NONE
        return Value(Kind.MEMBER, label=name, parts=(owner,))

    def truth(self, value: Value) -> bool | None:
        """Return whether a value counts as true, None where that is not known."""
        if value.kind in (Kind.NONE, Kind.FALSE):
            return False
        return True if value.kind in (Kind.TRUE, Kind.TAKES, Kind.OBJECT, Kind.STREAM, Kind.BATCH) else None

    def decide(self, test: cst.BaseExpression, way: Way, answer: bool) -> Way:
        """Return the way on which a test that was not decided has this answer."""
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return self.decide(test.expression, way, not answer)
        if isinstance(test, cst.Name) and test.value in way.names and way.names[test.value] == OTHER:
            return way.bind(test.value, decided(answer))
        return way

    def _negated(self, value: Value) -> Value:
        known = self.truth(value)
        return OTHER if known is None else decided(not known)

    def _joined(self, node: cst.BooleanOperation, way: Way) -> Iterator[tuple[Way, Value]]:
        stops = isinstance(node.operator, cst.Or)
        for after, value in self.evaluate(node.left, way):
            known = self.truth(value)
            if known is None or known is stops:
                ended = after if known is not None else self.decide(node.left, after, stops)
                yield ended, value if known is not None or stops else FALSE
            if known is None or known is not stops:
                yield from self.evaluate(
                    node.right, after if known is not None else self.decide(node.left, after, not stops)
                )

    def _chosen(self, node: cst.IfExp, way: Way) -> Iterator[tuple[Way, Value]]:
        for after, test in self.evaluate(node.test, way):
            known = self.truth(test)
            if known is not False:
                yield from self.evaluate(node.body, after if known else self.decide(node.test, after, True))
            if known is not True:
                yield from self.evaluate(node.orelse, after if known is False else self.decide(node.test, after, False))

    def _compared(self, node: cst.Comparison, way: Way) -> Valued:
        if len(node.comparisons) != 1:
            return [(way, OTHER)]
        target = node.comparisons[0]
        if isinstance(target.operator, cst.Is | cst.IsNot):
            positive = isinstance(target.operator, cst.Is)
            return [
                (end, decided(answer is positive) if answer is not None else _undecided(left, right))
                for after, left in self.evaluate(node.left, way)
                for middle, right in self.evaluate(target.comparator, after)
                for end, answer in self._identical(node.left, left, right, middle)
            ]
        if (
            m.matches(target.comparator, m.Integer("0"))
            and m.matches(node.left, _ROWS)
            and isinstance(node.left, cst.Subscript)
        ):
            equal, unequal = isinstance(target.operator, cst.Equal), isinstance(target.operator, cst.NotEqual)
            holder = node.left.value
            if (equal or unequal) and isinstance(holder, cst.Attribute):
                return [
                    answer
                    for after, tensor in self.evaluate(holder.value, way)
                    for answer in self._with_rows(tensor, after, decided(unequal))
                ]
        return [(way, OTHER)]

    def _with_rows(self, tensor: Value, way: Way, some: Value) -> Valued:
        if tensor.kind in TENSORS or tensor.kind is Kind.DERIVED:
            return [(way, some)]
        return [(way, OTHER)]

    def _identical(
        self, node: cst.BaseExpression, left: Value, right: Value, way: Way
    ) -> list[tuple[Way, bool | None]]:
        """Return on which ways two values are the same object."""
        if right.kind is Kind.NONE:
            return self._absent(node, left, way)
        if left.kind is Kind.NONE and right.kind is Kind.NAME:
            return [(way, False)]
        if (
            left.kind is Kind.MEMBER
            and left.label == "kind"
            and left.parts[0].kind is Kind.OBJECT
            and left.parts[0].label
        ):
            return [(way, left.parts[0].label == right.label)]
        if left.kind in TENSORS and right.kind is left.kind and isinstance(node, cst.Name) and not left.own:
            # A move may hand back the tensor itself; where it does not, the storage is its own.
            same = {name: replace(v, label=left.label) if v.kind is left.kind else v for name, v in way.names.items()}
            return [(replace(way, names=same), True), (way.bind(node.value, replace(left, own=True)), False)]
        return [(way, None)]

    def _absent(self, node: cst.BaseExpression, value: Value, way: Way) -> list[tuple[Way, bool | None]]:
        if value.kind is Kind.NONE:
            return [(way, True)]
        if value.kind is Kind.RESIDUAL:
            known = way.has_residual
            ways = [(replace(way, has_residual=False), True), (replace(way, has_residual=True), False)]
            return [(new, answer) for new, answer in ways if known is None or known is not answer]
        if value.kind is Kind.PENDING:
            known = way.has_pending
            ways = [(replace(way, has_pending=False), True), (replace(way, has_pending=True), False)]
            return [(new, answer) for new, answer in ways if known is None or known is not answer]
        if value.is_there or value.kind in _WITHOUT_NONE:
            return [(way, False)]
        if isinstance(node, cst.Name) and node.value in way.names:
            return [(way.bind(node.value, NONE), True), (way.bind(node.value, replace(value, is_there=True)), False)]
        return [(way, True), (way, False)]

    def _added(self, node: cst.BinaryOperation, way: Way) -> Valued:
        results: Valued = []
        for after, left in self.evaluate(node.left, way):
            for end, right in self.evaluate(node.right, after):
                if {left.kind, right.kind} == {Kind.STATE, Kind.RESIDUAL} and isinstance(node.operator, cst.Add):
                    results.append((end, replace(self.sum_of(left, right, end), own=True)))
                elif left.reaches_stream or right.reaches_stream:
                    results.append((end, self._changed(node)))
                else:
                    results.append((end, DERIVED if Kind.DERIVED in (left.kind, right.kind) else OTHER))
        return results

    def sum_of(self, state: Value, residual: Value, way: Way) -> Value:
        """Return what a kernel that adds the two gives back as the residual."""
        if way.spent:
            return Value(Kind.CHANGED, label="a kernel has written over it before")
        if way.owed is not None:
            return Value(Kind.CHANGED, label="the ranks have not summed it yet")
        if {state.kind, residual.kind} == {Kind.STATE, Kind.RESIDUAL} or (
            state.kind is Kind.STATE and residual.kind is Kind.NONE and way.is_lone
        ):
            return Value(Kind.SUM)
        if state.kind is Kind.SUM and residual.kind is Kind.NONE:
            return Value(Kind.SUM)
        return Value(Kind.CHANGED, label="it is not the sum of the state and the residual that entered the block")

    def _listed(self, node: cst.Tuple | cst.List, way: Way) -> Valued:
        results: list[tuple[Way, tuple[Value, ...]]] = [(way, ())]
        for element in node.elements:
            results = [
                (end, (*values, value))
                for after, values in results
                for end, value in self.evaluate(element.value, after)
            ]
        return [(end, several(*values)) for end, values in results]

    def _item(self, node: cst.Subscript, value: Value) -> Value:
        key = self.text_of_index(node)
        if value.kind is Kind.KEYWORDS and key is not None:
            return value.item(key) or OTHER
        if value.kind is Kind.TUPLE and value.label == "split":
            return value.parts[0]
        if value.kind in TENSORS:
            return Value(Kind.CHANGED, label="a part of it is cut out")
        if value.reaches_stream:
            self.refuse(node, "what stands at this place of it is not known")
        return DERIVED if value.kind is Kind.DERIVED else OTHER

    @staticmethod
    def text_of_index(node: cst.Subscript) -> str | None:
        """Return the string that a subscript asks for."""
        if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
            value = node.slice[0].slice.value
            return str(value.evaluated_value) if isinstance(value, cst.SimpleString) else None
        return None

    def is_harmless_use(self, name: cst.Name, held: Kind) -> bool:
        """Tell whether a name with the collector is only deleted, or keywords with it asked for another key."""
        parent = self.fragment.parent_of(name)
        if isinstance(parent, cst.Attribute) and parent.attr is name:
            return True
        if isinstance(parent, cst.Del) or (isinstance(parent, cst.Arg) and parent.keyword is name):
            return True
        asks = isinstance(parent, cst.Subscript) or (isinstance(parent, cst.Attribute) and parent.attr.value == "get")
        return asks and held is Kind.KEYWORDS
