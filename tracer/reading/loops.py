"""The loop over decoder blocks: what counts it, which calls within it run a block, and how a test asks for a layer."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.reading.mentions import attribute_of, bound_names
from auxtap.tracer.source.bodies import statements_of
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.walk import find, walk

BLOCKS = "layers"
_COUNTS = frozenset({"num_hidden_layers"})


@dataclass(frozen=True, eq=False)
class BlockCall:
    """A call that runs a block: `self.layers[i](..)`, or of a name (`layer`) that holds a block."""

    node: cst.Call
    block: cst.BaseExpression


@dataclass(frozen=True)
class LayerTest:
    """A test whether the state of a round is asked for: entry `index + shift` of a list, or a mark on the block."""

    attribute: str
    shift: int
    is_mark: bool = False


@dataclass(frozen=True, eq=False)
class DecoderLoop:
    """A loop of a function in whose rounds blocks run; `owner` is the name of self."""

    node: cst.For
    owner: str

    @cached_property
    def block_names(self) -> frozenset[str]:
        """The names that hold a block somewhere in the loop: of its own one, or of another."""
        assigns = (item for item in walk(self.node) if isinstance(item, cst.Assign | cst.AnnAssign))
        names = {name for item in assigns if self._is_block(item.value) for name in bound_names(item)}
        return frozenset(names | ({self.enumerated} if self.enumerated else set()))

    @property
    def enumerated(self) -> str | None:
        """The name that holds the block of the round from its beginning: `for i, layer in enumerate(self.layers)`."""
        pair = self._pair()
        return None if pair is None else pair[1]

    def _pair(self) -> tuple[str, str] | None:
        target = self.node.target
        if not isinstance(target, cst.Tuple) or len(target.elements) != 2:
            return None
        names = [element.value.value for element in target.elements if isinstance(element.value, cst.Name)]
        return (names[0], names[1]) if len(names) == 2 else None

    def _is_block(self, node: cst.BaseExpression | None) -> bool:
        return isinstance(node, cst.Subscript) and attribute_of(node.value, self.owner) == BLOCKS

    def calls_in(self, node: cst.CSTNode) -> Iterator[BlockCall]:
        """Yield the calls of a block at or below a node."""
        for call in find(node, cst.Call):
            function = call.func
            if isinstance(function, cst.Attribute) and function.attr.value == "forward":
                function = function.value
            if self._is_block(function) or (isinstance(function, cst.Name) and function.value in self.block_names):
                yield BlockCall(call, function)

    def is_own_block(self, node: cst.BaseExpression) -> bool:
        """Tell whether an expression is `self.layers[index]`."""
        return self._is_block(node) and m.matches(
            node, m.Subscript(slice=[m.SubscriptElement(m.Index(m.Name(self.index or "")))])
        )

    @cached_property
    def index(self) -> str | None:
        """The name that counts the blocks from 0 over the whole model, None when the loop counts otherwise."""
        iterated, target = self.node.iter, self.node.target
        if self.node.orelse is not None or not isinstance(iterated, cst.Call) or self.node.asynchronous is not None:
            return None
        arguments = [item.value for item in iterated.args if item.keyword is None and not item.star]
        if len(arguments) != len(iterated.args):
            return None
        if m.matches(iterated.func, m.Name("range")) and isinstance(target, cst.Name):
            return target.value if self._counts(arguments) else None
        pair = self._pair()
        if m.matches(iterated.func, m.Name("enumerate")) and pair is not None and len(arguments) == 1:
            whole = attribute_of(arguments[0], self.owner) == BLOCKS
            return pair[0] if whole or self._begins_at_its_stage(arguments[0], pair[0]) else None
        return None

    def _counts(self, arguments: list[cst.BaseExpression]) -> bool:
        """Tell whether a range is that of the blocks; what locals of it hold is asked elsewhere (`bounds`)."""
        if len(arguments) == 2:
            names = [_last(item) for item in arguments]
            return names[0].endswith("start_layer") and names[1].endswith("end_layer")
        count = m.Call(func=m.Name("len"), args=[m.Arg(m.Attribute(value=m.Name(self.owner), attr=m.Name(BLOCKS)))])
        return len(arguments) == 1 and (m.matches(arguments[0], count) or self._is_count(arguments[0]))

    def _is_count(self, node: cst.BaseExpression) -> bool:
        if not isinstance(node, cst.Attribute) or node.attr.value not in _COUNTS:
            return False
        return attribute_of(node, self.owner) is not None or attribute_of(node.value, self.owner) == "config"

    @property
    def bounds(self) -> tuple[str, ...]:
        """The locals between which the loop counts (`normal_start_layer`, `normal_end_layer`); none of self's own."""
        arguments = self.node.iter.args if isinstance(self.node.iter, cst.Call) else ()
        return tuple(item.value.value for item in arguments if isinstance(item.value, cst.Name))

    def is_foreign(self) -> bool:
        """Tell whether the bounds are attributes of something else than self."""
        arguments = [item.value for item in getattr(self.node.iter, "args", ())]
        ranged = m.matches(self.node.iter, m.Call(func=m.Name("range"))) and len(arguments) == 2
        return ranged and any(
            isinstance(item, cst.Attribute) and not attribute_of(item, self.owner) for item in arguments
        )

    def _begins_at_its_stage(self, blocks: cst.BaseExpression, index: str) -> bool:
        """Tell whether a loop enumerates its stage's blocks and first of all adds the number of the first one."""
        begin = m.Attribute(value=m.Name(self.owner), attr=m.Name("start_layer"))
        end = m.Attribute(value=m.Name(self.owner), attr=m.Name("end_layer"))
        part = m.SubscriptElement(slice=m.Slice(lower=begin, upper=end, step=None))
        if not self._is_block(blocks) or not m.matches(blocks, m.Subscript(slice=[part])):
            return False
        added = m.BinaryOperation(left=m.Name(index), operator=m.Add(), right=begin)
        assign = m.Assign(targets=[m.AssignTarget(m.Name(index))], value=added)
        first = assign | m.AugAssign(target=m.Name(index), operator=m.AddAssign(), value=begin)
        return m.matches(statements_of(self.node.body)[0], m.SimpleStatementLine(body=[first]))

    @property
    def round(self) -> tuple[cst.CSTNode, ...]:
        """The statements of a round, without the one that completes the number of the block."""
        body = statements_of(self.node.body)
        staged = m.matches(self.node.iter, m.Call(args=[m.Arg(m.Subscript())]))
        return body[1:] if staged and self.index is not None else body

    def test_of(self, node: cst.BaseExpression) -> LayerTest | None:
        """Return the layer test that an expression is, as a whole."""
        if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
            target = node.comparisons[0]
            name = attribute_of(target.comparator, self.owner)
            if isinstance(target.operator, cst.In) and name is not None and kind_of(name) is Kind.LAYERS:
                shift = self._shift(node.left)
                return None if shift is None else LayerTest(name, shift)
        marked = m.Call(func=m.Name("getattr"), args=[m.Arg(m.Name()), m.Arg(m.SimpleString()), m.Arg(m.Name("False"))])
        if isinstance(node, cst.Call) and m.matches(node, marked):
            block, mark = node.args[0].value, node.args[1].value
            if isinstance(block, cst.Name) and isinstance(mark, cst.SimpleString) and block.value in self.block_names:
                name = str(mark.raw_value)
                return LayerTest(name, 0, is_mark=True) if kind_of(name) is Kind.MARK else None
        return None

    def _shift(self, node: cst.BaseExpression) -> int | None:
        if isinstance(node, cst.Name):
            return 0 if node.value == self.index else None
        if isinstance(node, cst.BinaryOperation) and m.matches(node.left, m.Name(self.index or "")):
            sign = {cst.Add: 1, cst.Subtract: -1}.get(type(node.operator))
            if sign is not None and isinstance(node.right, cst.Integer):
                return sign * node.right.evaluated_value
        return None


def _last(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def names_layers(node: cst.CSTNode) -> bool:
    """Tell whether a node names a list of captured layers, or a mark on a block."""
    for item in walk(node):
        if isinstance(item, cst.Attribute) and kind_of(item.attr.value) in (Kind.LAYERS, Kind.MARK):
            return True
        if isinstance(item, cst.SimpleString) and kind_of(str(item.raw_value)) is Kind.MARK:
            return True
    return False


def decoder_loops(function: cst.CSTNode, owner: str) -> list[DecoderLoop]:
    """Return the loops of a function in which a block is called."""
    loops = (DecoderLoop(node, owner) for node in find(function, cst.For))
    return [loop for loop in loops if any(True for _ in loop.calls_in(loop.node.body))]


def is_length(node: cst.CSTNode, of: m.Name) -> bool:
    """Tell whether an expression is `len(x)`."""
    return m.matches(node, m.Call(func=m.Name("len"), args=[m.Arg(of)]))


@dataclass(frozen=True, eq=False)
class Running:
    """A statement that runs a block: the call, the names that it binds, and those of its plain arguments."""

    node: cst.Assign | cst.AnnAssign
    call: BlockCall
    bound: tuple[str, ...]
    given: frozenset[str]

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names that the block is given and returns, in the order in which it returns them."""
        return tuple(name for name in self.bound if name in self.given)


def runnings_of(loop: DecoderLoop) -> list[Running]:
    """Return the statements of a loop's round that assign what a block returns."""
    calls = {call.node: call for call in loop.calls_in(loop.node.body)}
    found = []
    for node in walk(loop.node.body):
        if isinstance(node, cst.Assign | cst.AnnAssign) and isinstance(node.value, cst.Call) and node.value in calls:
            names = {item.value.value for item in node.value.args if isinstance(item.value, cst.Name)}
            found.append(Running(node, calls[node.value], tuple(bound_names(node)), frozenset(names)))
    return found
