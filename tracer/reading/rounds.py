"""Follow one round of a decoder loop symbolically, on every way through it.

At its top the names that the block is given hold symbols. What a statement of a known form does to them is followed;
any other statement that touches one gives all of them new values, and one that touches the collector or the way of the
loop is objected to. So a capture holds when what was taken is made of the very values that the block is given.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.reading.loops import BlockCall, DecoderLoop, LayerTest, names_layers
from auxtap.tracer.reading.mentions import bound_names, conjuncts, is_own_line, touches
from auxtap.tracer.source.bodies import statements_of
from auxtap.tracer.source.fragments import last_name, source_of

_MAX_WAYS = 128
_GATHERS = frozenset({"tensor_model_parallel_all_gather", "all_gather"})
_TAKES = frozenset({"append", "capture"})
# A mark on a state that was not yet reduced, and the call that does it: the block then finds it done.
_PENDING, _REDUCES = "_sglang_needs_allreduce_fusion", "tensor_model_parallel_all_reduce"
_ROW_DIM = m.Arg(keyword=m.Name("dim"), value=m.Integer("0"))
_CLEARS_MARK = m.Assign(
    targets=[m.AssignTarget(m.Attribute(value=m.Name(), attr=m.Name(_PENDING)))], value=m.Name("False")
)

_ASKS_OTHERWISE = "how it asks for the captured layers here is not followed"

Held = Literal["tensor", "sum", "gather", "copy", "collector", "block", "none", "other"]


class ObjectedError(Exception):
    """A place that is not understood."""

    def __init__(self, node: cst.CSTNode, reason: str) -> None:
        super().__init__(reason)
        self.node, self.reason = node, reason


@dataclass(frozen=True)
class Value:
    """What a name or an expression holds: `of` are the tensors that it is made of, `method` that of a collector."""

    held: Held
    of: frozenset[int] = frozenset()
    method: str | None = None


OTHER, NONE, BLOCK = Value("other"), Value("none"), Value("block")


@dataclass(frozen=True, eq=False)
class Taken:
    """A state that was taken on one way: where, what, and under which tests beside that of the layer.

    `keyword` is the parameter of the block that is handed the collector.
    """

    node: cst.CSTNode
    value: Value
    when: Literal["before", "next", "within"]
    conditions: tuple[str, ...]
    keyword: str = ""


@dataclass(frozen=True)
class Given:
    """What a block was given: the value of each name, the parameter it went to, and the other parameters.

    A parameter is named by keyword, or by its place counted from 0 behind self: `#1`.
    """

    values: Mapping[str, Value]
    parameters: Mapping[str, str]
    others: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """What a test said that is not about the layer; `flags` are the attributes that it asks for as they are."""

    source: str
    holds: bool
    flags: frozenset[str]

    def __str__(self) -> str:
        return self.source if self.holds else f"not ({self.source})"

    def says(self, flag: str) -> bool:
        """Tell whether the flag is up."""
        return self.holds and flag in self.flags


@dataclass(frozen=True, eq=False)
class Way:
    """One way through the round: what the names hold, and what happened so far."""

    values: Mapping[str, Value]
    facts: tuple[Fact, ...] = ()
    taken: tuple[Taken, ...] = ()
    given: Given | None = None
    is_over: bool = False


@dataclass(frozen=True)
class Names:
    """The names that a round is read with.

    `tensors` are those that the block is given and returns, in its order; `aliases` what may share their storage;
    `copying` the methods of the collector that keep a copy; `sums` the functions that add two tensors; `marked` tells
    that marks on blocks answer as the list does.
    """

    accumulator: str
    tensors: tuple[str, ...]
    aliases: frozenset[str]
    copying: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()
    marked: bool = True


class Round:
    """Reads the statements of a round, for one answer to the layer test."""

    def __init__(self, names: Names, loop: DecoderLoop, *, wanted: bool) -> None:
        self._names, self._loop, self._wanted = names, loop, wanted
        self._numbers = count(1)
        self._guarded = {names.accumulator, loop.index or ""} - {""}
        self._collector = {names.accumulator} - {""}
        self._in_round = True
        self.tests: dict[LayerTest, cst.CSTNode] = {}

    def start(self) -> Way:
        """Return the state of things at the top of a round."""
        values = {name: self._fresh() for name in self._names.tensors}
        return Way(values | ({self._loop.enumerated: BLOCK} if self._loop.enumerated else {}))

    def _fresh(self) -> Value:
        return Value("tensor", frozenset({next(self._numbers)}))

    def follow(self, way: Way, statements: Sequence[cst.CSTNode]) -> list[Way]:
        """Return every way through the statements.

        Raises:
            ObjectedError: a statement is not understood.
        """
        ways = [way]
        for statement in statements:
            ways = [new for old in ways for new in ([old] if old.is_over else self._step(old, statement))]
            if len(ways) > _MAX_WAYS:
                raise ObjectedError(statement, "there are too many ways through a round")
        return ways

    def _step(self, way: Way, statement: cst.CSTNode) -> list[Way]:
        if isinstance(statement, cst.SimpleStatementLine):
            return self.follow(way, statement.body)
        if is_own_line(statement):
            return [way]
        if isinstance(statement, cst.If):
            return self._branch(way, statement)
        if isinstance(statement, cst.Else):
            return self.follow(way, statements_of(statement.body))
        if isinstance(statement, cst.With):
            for item in statement.items:
                way = self._any(way, item)
            return self.follow(way, statements_of(statement.body))
        if isinstance(statement, cst.BaseCompoundStatement):
            if touches(statement, {*self._guarded, *self._names.aliases}):
                raise ObjectedError(statement, "a statement of this kind that touches a state is not followed")
            return [self._any(way, statement)]
        return self._small(way, statement)

    def _small(self, way: Way, node: cst.CSTNode) -> list[Way]:
        if isinstance(node, cst.Raise):
            return []
        if isinstance(node, cst.Return | cst.Break):
            raise ObjectedError(node, "it may leave the loop before its end")
        if isinstance(node, cst.Continue):
            return [replace(way, is_over=True)]
        if isinstance(node, cst.Expr) and (call := self._taking(node.value)) is not None:
            return [self._take(way, node, call)]
        if isinstance(node, cst.Assign | cst.AnnAssign) and node.value is not None:
            return [self._assign(way, node, node.value)]
        return [self._any(way, node)]

    def _branch(self, way: Way, branch: cst.If) -> list[Way]:
        ways: list[Way] = []
        for holds, passed in self._answers(way, branch.test):
            if holds:
                ways += self.follow(passed, statements_of(branch.body))
            else:
                ways += [passed] if branch.orelse is None else self._step(passed, branch.orelse)
        return ways

    def _answers(self, way: Way, test: cst.BaseExpression) -> Iterator[tuple[bool, Way]]:
        """Yield the answers that a test may give, and what is known then; that of the layer is the one that is read."""
        unknown: list[cst.BaseExpression] = []
        for part in conjuncts(test):
            answer = self._layer_answer(way, part)
            if answer is False:
                yield False, way
                return
            if answer is None:
                way = self._any(way, part)
                unknown.append(part)
        source, flags = " and ".join(map(source_of, unknown)), frozenset(map(_flag_of, unknown))
        for holds in (True, False) if unknown else (True,):
            yield holds, replace(way, facts=(*way.facts, Fact(source, holds, flags))) if unknown else way

    def _layer_answer(self, way: Way, node: cst.BaseExpression) -> bool | None:
        """Return the answer of a layer test, None for any other."""
        found = self._loop.test_of(node)
        if found is None:
            return None
        if isinstance(node, cst.Call) and self.value_of(way, node.args[0].value) != BLOCK:
            raise ObjectedError(node, "the block that it asks is not known to be that of the round")
        if found.shift not in (0, 1):
            raise ObjectedError(node, f"it tests {source_of(node)}, not the number of the block")
        self.tests[found] = node
        return self._wanted and (self._names.marked or not found.is_mark)

    def pass_by(self, way: Way, statement: cst.CSTNode) -> Way:
        """Follow a statement before the loop, which may do anything to the tensors but leaves the collector alone."""
        if not touches(statement, {*self._guarded, *self._names.aliases}):
            return way
        self._in_round = False
        way = self._any(way, statement)
        self._in_round = True
        return way

    def _any(self, way: Way, node: cst.CSTNode) -> Way:
        """Follow code of no known form: it must leave the collector and the loop alone, and may change the tensors."""
        if names_layers(node):
            tested = isinstance(node, cst.BaseExpression)
            what = f"it tests {source_of(node)}, not the number of the block" if tested else _ASKS_OTHERWISE
            raise ObjectedError(node, what)
        bound = set(bound_names(node))
        handed = {name for name, value in way.values.items() if value.held == "collector"}
        if bound & self._guarded or touches(node, self._collector | handed):
            raise ObjectedError(node, "what it does to the collector, or to the number of the block, is not followed")
        if any(True for _ in self._loop.calls_in(node)):
            raise ObjectedError(node, "what the block returns is not assigned by its call")
        values = {name: OTHER if name in bound else value for name, value in way.values.items()}
        if touches(node, self._names.aliases):
            values = {name: self._changed(value) for name, value in values.items()}
            if self._in_round and self._collector and (way.given is None or not self._binds_or_writes(node)):
                raise ObjectedError(node, "what is taken is changed before it enters the block, or kept elsewhere")
        return replace(way, values=values)

    def _binds_or_writes(self, node: cst.CSTNode) -> bool:
        """Tell whether a statement binds a state anew or writes into it by a method of its own, and no more."""
        if isinstance(node, cst.Assign):
            names = {name for target in node.targets for name in bound_names(target)}
            return bool(names & set(self._names.tensors)) and not any(
                isinstance(target.target, cst.Attribute | cst.Subscript) for target in node.targets
            )
        if isinstance(node, cst.AugAssign):
            return isinstance(node.target, cst.Name)
        call = node.value if isinstance(node, cst.Expr) else None
        method = m.Attribute(value=m.Name(m.MatchIfTrue(lambda name: name in self._names.tensors)))
        written = isinstance(call, cst.Call) and m.matches(call.func, method)
        return written and not any(touches(item, self._names.aliases) for item in getattr(call, "args", ()))

    def _changed(self, value: Value) -> Value:
        if value.held == "tensor":
            return self._fresh()
        return OTHER if value.held in ("sum", "gather", "copy") else value

    def _taking(self, node: cst.BaseExpression) -> cst.Call | None:
        """Return the call `accumulator.append(..)` of one thing."""
        if not self._collector or not isinstance(node, cst.Call) or len(node.args) != 1 or node.args[0].star:
            return None
        method = m.Attribute(value=m.Name(self._names.accumulator))
        fits = m.matches(node.func, method) and last_name(node.func) in _TAKES and node.args[0].keyword is None
        return node if fits else None

    def _take(self, way: Way, node: cst.Expr, call: cst.Call) -> Way:
        value = self.value_of(way, call.args[0].value)
        owner = self._loop.owner
        test = f"{owner}.enable_a2a_moe and {self._loop.index} > {owner}.first_k_dense_replace"
        scattered = any(fact.holds and fact.source == test for fact in way.facts)
        if value.held == "tensor" and last_name(call.func) not in self._names.copying:
            raise ObjectedError(node, "it keeps a tensor that later blocks may write over, or leaves the residual out")
        if value.held not in ("sum", "gather", "copy", "tensor"):
            raise ObjectedError(node, "what it takes is no known form of what enters a block")
        if scattered is not (value.held == "gather"):
            raise ObjectedError(
                node, "it gathers the rows of the ranks where they are whole, or takes them where they are not"
            )
        taken = Taken(node, value, "before" if way.given is None else "next", tuple(map(str, way.facts)))
        return replace(way, taken=(*way.taken, taken))

    def _assign(self, way: Way, node: cst.Assign | cst.AnnAssign, value: cst.BaseExpression) -> Way:
        call = next(self._loop.calls_in(value), None)
        if call is not None and call.node is value:
            return self._run_block(way, node, call)
        targets = [item.target for item in node.targets] if isinstance(node, cst.Assign) else [node.target]
        if len(targets) == 1 and isinstance(targets[0], cst.Name) and targets[0].value not in self._guarded:
            held = self.value_of(way, value)
            if held.held != "other":
                return replace(way, values={**way.values, targets[0].value: held})
        return way if m.matches(node, _CLEARS_MARK) else self._any(way, node)

    def _run_block(self, way: Way, node: cst.Assign | cst.AnnAssign, call: BlockCall) -> Way:
        if way.given is not None:
            raise ObjectedError(node, "a round has 2 calls of a block")
        if self.value_of(way, call.block).held != "block":
            raise ObjectedError(node, "the block that it runs is not known to be that of the round")
        bound = list(bound_names(node))
        if set(bound) & self._guarded:
            raise ObjectedError(node, "the call of the block binds the number of the block, or the collector")
        given: dict[str, Value] = {}
        parameters: dict[str, str] = {}
        others: list[str] = []
        for number, argument in enumerate(call.node.args):
            label = argument.star or (f"#{number}" if argument.keyword is None else argument.keyword.value)
            value = self.value_of(way, argument.value)
            if value.held == "tensor" and isinstance(argument.value, cst.Name) and not argument.star:
                given[argument.value.value], parameters[argument.value.value] = value, label
            elif value.held == "collector" and argument.keyword is not None:
                taken = Taken(argument, value, "within", tuple(map(str, way.facts)), label)
                way = replace(way, taken=(*way.taken, taken))
            elif value.held != "none" and touches(argument.value, {*self._names.aliases, *self._collector}):
                raise ObjectedError(argument, "what is taken is changed before it enters the block")
            elif value.held != "none":
                others.append(label)
        values = {name: self._changed(value) for name, value in way.values.items()}
        values |= {name: self._fresh() if name in self._names.tensors else OTHER for name in bound}
        return replace(way, values=values, given=Given(given, parameters, tuple(others)))

    def value_of(self, way: Way, node: cst.BaseExpression) -> Value:
        """Return what an expression of a known form holds."""
        if isinstance(node, cst.Name):
            if node.value == "None":
                return NONE
            return Value("collector") if node.value in self._collector else way.values.get(node.value, OTHER)
        if isinstance(node, cst.Attribute):
            owner = self.value_of(way, node.value)
            known = owner == Value("collector") and node.attr.value in _TAKES
            return Value("collector", method=node.attr.value) if known else OTHER
        if isinstance(node, cst.Subscript):
            return BLOCK if self._loop.is_own_block(node) else OTHER
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
            return _sum(self.value_of(way, node.left), self.value_of(way, node.right))
        if isinstance(node, cst.IfExp):
            return self._choice(way, node)
        return self._called(way, node) if isinstance(node, cst.Call) else OTHER

    def _choice(self, way: Way, node: cst.IfExp) -> Value:
        answer = self._layer_answer(way, node.test)
        if answer is not None:
            return self.value_of(way, node.body if answer else node.orelse)
        body, other = self.value_of(way, node.body), self.value_of(way, node.orelse)
        asked = self._asked_for(way, node.test)
        if asked is not None:
            there, (whole, alone) = asked[0], (body, other) if asked[1] else (other, body)
            # Without a residual there is nothing to add: that is the first block, whose input is not captured.
            if whole.held == "sum" and alone.held == "tensor" and whole.of == alone.of | there:
                return whole
        return OTHER

    def _asked_for(self, way: Way, test: cst.BaseExpression) -> tuple[frozenset[int], bool] | None:
        """Return which tensor `x is not None` asks for, and whether the test holds where there is one."""
        if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
            return None
        operator, value = test.comparisons[0].operator, self.value_of(way, test.left)
        fits = value.held == "tensor" and self.value_of(way, test.comparisons[0].comparator) == NONE
        return (
            (value.of, isinstance(operator, cst.IsNot)) if fits and isinstance(operator, cst.Is | cst.IsNot) else None
        )

    def _called(self, way: Way, node: cst.Call) -> Value:
        name = last_name(node.func) or ""
        if isinstance(node.func, cst.Attribute) and name == "clone" and not node.args:
            value = self.value_of(way, node.func.value)
            return replace(value, held="copy") if value.held == "tensor" else value if value.held == "sum" else OTHER
        if not node.args or any(item.star for item in node.args) or node.args[0].keyword is not None:
            return OTHER
        value = self.value_of(way, node.args[0].value)
        if name in _GATHERS and value.held == "sum" and len(node.args) == 2 and m.matches(node.args[1], _ROW_DIM):
            return replace(value, held="gather")
        pending = any(fact.says(_PENDING) for fact in way.facts)
        if name == _REDUCES and value.held == "tensor" and len(node.args) == 1 and pending:
            return self._fresh()
        if name in self._names.sums and len(node.args) == 2 and node.args[1].keyword is None:
            return _sum(value, self.value_of(way, node.args[1].value))
        return OTHER


def _flag_of(test: cst.BaseExpression) -> str:
    """Return `flag` of `self.flag`, and of `getattr(x, "flag", False)`."""
    if isinstance(test, cst.Call) and m.matches(test, m.Call(func=m.Name("getattr"), args=[m.Arg(), m.Arg(), m.Arg()])):
        flag = test.args[1].value
        return str(flag.raw_value) if isinstance(flag, cst.SimpleString) else ""
    return test.attr.value if isinstance(test, cst.Attribute) else ""


def _sum(left: Value, right: Value) -> Value:
    fits = left.held == right.held == "tensor" and left.of != right.of
    return Value("sum", left.of | right.of) if fits else OTHER
