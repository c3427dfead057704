"""What becomes of the collector behind the loop: the stage exits, and the returns that hand it on."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.reading.loops import is_length
from auxtap.tracer.reading.mentions import attribute_of, conjuncts, is_own_line, touches
from auxtap.tracer.reading.rounds import ObjectedError
from auxtap.tracer.source.bodies import statements_of
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.walk import children_of, find

_TAKES = frozenset({"append", "capture"})
_ENDS = frozenset({"end_layer", "num_hidden_layers"})
_ZERO = m.Comparison(comparisons=[m.ComparisonTarget(operator=m.Equal(), comparator=m.Integer("0"))])
_SOME = m.Comparison(
    comparisons=[m.ComparisonTarget(operator=m.GreaterThan() | m.NotEqual(), comparator=m.Integer("0"))]
)
_IDLE = m.Call(func=m.Attribute(value=m.Attribute(attr=m.Name("forward_mode")), attr=m.Name("is_idle")), args=[])


def is_stage_exit(node: cst.CSTNode, owner: str) -> bool:
    """Tell whether a statement is `if not self.pp_group.is_last_rank:` with a return in it."""
    group = m.Attribute(value=m.Name(owner), attr=m.Name("pp_group"))
    last = m.UnaryOperation(operator=m.Not(), expression=m.Attribute(value=group, attr=m.Name("is_last_rank")))
    return isinstance(node, cst.If) and m.matches(node.test, last) and any(returns_in([node.body]))


def returns_in(nodes: Sequence[cst.CSTNode]) -> list[cst.Return]:
    """Return the returns of a function's own nodes, those of functions within it left aside."""
    found, waiting = [], list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, cst.Return):
            found.append(node)
        elif not isinstance(node, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            waiting.extend(children_of(node))
    return found


@dataclass
class Behind:
    """Reads the statements behind a loop; `ends` are the locals that hold the number of the last block plus one.

    `exits` and `last` gather the stage exits and the places that take what the last block returns, which is no input
    of any block and never asked for by the tap.
    """

    owner: str
    accumulator: str
    finish: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()
    exits: list[cst.If] = field(default_factory=list)
    last: list[cst.CSTNode] = field(default_factory=list)
    _handed_on: bool = False

    def read(self, statements: Sequence[cst.CSTNode]) -> None:
        """Follow the collector to the returns.

        Raises:
            ObjectedError: something is done to it that is not understood, or a return leaves it out.
        """
        self._read(statements, may_drop=False)
        if not self._handed_on:
            raise ObjectedError(statements[-1], "it never returns what it captured")

    def _read(self, statements: Sequence[cst.CSTNode], *, may_drop: bool) -> None:
        for statement in statements:
            if is_own_line(statement):
                continue
            if isinstance(statement, cst.SimpleStatementLine):
                self._read(statement.body, may_drop=may_drop)
            elif isinstance(statement, cst.If):
                may_drop = self._branch(statement, may_drop) or may_drop
            elif isinstance(statement, cst.With):
                self._leave_alone(*statement.items)
                self._read(statements_of(statement.body), may_drop=may_drop)
            elif isinstance(statement, cst.Return):
                self._return(statement, may_drop)
            else:
                self._leave_alone(statement)
                if returns := returns_in([statement] if isinstance(statement, cst.BaseCompoundStatement) else []):
                    raise ObjectedError(returns[0], "a return within a statement of this kind is not followed")

    def _branch(self, branch: cst.If, may_drop: bool) -> bool:
        """Read a branch; tell whether nothing was captured where the function goes on behind it."""
        body = statements_of(branch.body)
        other = () if branch.orelse is None else _else_of(branch.orelse)
        filled = self._asks_whether_filled(branch.test)
        if is_stage_exit(branch, self.owner):
            self.exits.append(branch)
            self._leave_alone(branch.body)
        elif filled is not None:
            self._read(body, may_drop=may_drop or not filled)
            self._read(other, may_drop=may_drop or filled)
            return filled and bool(body) and bool(returns_in(body[-1:]))
        elif self._asks_for_the_end(branch.test):
            self.last.append(branch)
            if returns := returns_in(body):
                raise ObjectedError(
                    returns[0], "a return where the state behind the last block is taken is not followed"
                )
        else:
            self._leave_alone(branch.test)
            self._read(body, may_drop=may_drop or m.matches(branch.test, _IDLE))
        self._read(other, may_drop=may_drop)
        return False

    def _return(self, node: cst.Return, may_drop: bool) -> None:
        value = node.value
        if isinstance(value, cst.IfExp) and (filled := self._asks_whether_filled(value.test)) is not None:
            handed, dropped = (value.body, value.orelse) if filled else (value.orelse, value.body)
            self._leave_alone(dropped)
            value = handed
        elements = [item.value for item in value.elements] if isinstance(value, cst.Tuple) else []
        if len(elements) > 1 and self._is_collector(elements[-1]):
            self._leave_alone(*elements[:-1])
            self._handed_on = True
            return
        self._leave_alone(node)
        if not may_drop:
            raise ObjectedError(node, "it returns without what it captured")

    def _is_collector(self, node: cst.CSTNode) -> bool:
        plain = m.Name(self.accumulator)
        if m.matches(node, plain):
            return not self.finish
        finished = m.Call(func=m.Attribute(value=plain, attr=m.Name()), args=[])
        return isinstance(node, cst.Call) and m.matches(node, finished) and node.func.attr.value in self.finish  # type: ignore[attr-defined]

    def _asks_whether_filled(self, test: cst.BaseExpression) -> bool | None:
        """Return whether a test holds where something was captured (True) or where nothing was; None for others."""
        if m.matches(test, m.Name(self.accumulator)):
            return True
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            inner = self._asks_whether_filled(test.expression)
            return None if inner is None else not inner
        if isinstance(test, cst.Comparison) and is_length(test.left, m.Name(self.accumulator)):
            return False if m.matches(test, _ZERO) else True if m.matches(test, _SOME) else None
        return None

    def _asks_for_the_end(self, test: cst.BaseExpression) -> bool:
        """Tell whether a test holds only where the state behind the last block is asked for."""
        parts = conjuncts(test)
        asking = [part for part in parts if self._names_the_end(part)]
        return bool(asking) and not any(touches(part, {self.accumulator}) for part in parts)

    def _names_the_end(self, part: cst.BaseExpression) -> bool:
        if not isinstance(part, cst.Comparison) or len(part.comparisons) != 1:
            return False
        target = part.comparisons[0]
        layers = attribute_of(target.comparator, self.owner)
        if not isinstance(target.operator, cst.In) or layers is None or kind_of(layers) is not Kind.LAYERS:
            return False
        return is_end(part.left, self.owner) or (isinstance(part.left, cst.Name) and part.left.value in self.ends)

    def _leave_alone(self, *nodes: cst.CSTNode) -> None:
        """Object to whatever touches the collector, but for handing it on where the end is asked for."""
        for node in nodes:
            choices = [choice for choice in find(node, cst.IfExp) if self._asks_for_the_end(choice.test)]
            choices = [choice for choice in choices if self._is_taking(choice.body) and _is_none(choice.orelse)]
            self.last.extend(choices)
            if touches(node, {self.accumulator}, but=choices):
                raise ObjectedError(node, "what becomes of the collector here is not followed")

    def _is_taking(self, node: cst.CSTNode) -> bool:
        method = m.Attribute(value=m.Name(self.accumulator), attr=m.Name("append") | m.Name("capture"))
        return m.matches(node, method)


def is_end(node: cst.CSTNode, owner: str) -> bool:
    """Tell whether an expression is the number of the last block plus one."""
    if attribute_of(node, owner) in _ENDS:
        return True
    return isinstance(node, cst.Attribute) and node.attr.value in _ENDS and attribute_of(node.value, owner) == "config"


def _is_none(node: cst.CSTNode) -> bool:
    return m.matches(node, m.Name("None"))


def _else_of(orelse: cst.If | cst.Else) -> Sequence[cst.CSTNode]:
    return (orelse,) if isinstance(orelse, cst.If) else statements_of(orelse.body)
