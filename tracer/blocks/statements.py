"""Follow the statements of a function along every way through it, by known forms only."""

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from auxtap.tracer.blocks.calls import Calls
from auxtap.tracer.blocks.expressions import LAST
from auxtap.tracer.blocks.naming import FoundFunction
from auxtap.tracer.blocks.values import DERIVED, NONE, OTHER, SUM, Kind, Value, Way, distinct
from auxtap.tracer.source.bodies import statements_of
from auxtap.tracer.source.walk import find

_EFFECTLESS = (cst.Pass, cst.Global, cst.Nonlocal, cst.Import)
_MAX_WAYS = 512


class Follower(Calls):
    """Evaluates whole functions; expressions and calls are followed by its bases."""

    def run(self, function: FoundFunction, ways: list[Way]) -> list[Way]:
        """Return the ways on which a function returns, each with its result; those that raise are left out."""
        self.enter(function)
        try:
            ended = self.block(statements_of(function.node.body), ways)
        finally:
            self.leave()
        return distinct([way if way.result is not None else replace(way, result=NONE) for way in ended])

    def block(self, statements: Sequence[cst.CSTNode], ways: list[Way]) -> list[Way]:
        """Follow statements in order; ways that have returned are passed over."""
        for number, statement in enumerate(statements):
            going = [way for way in ways if way.result is None]
            returned = [way for way in ways if way.result is not None]
            if not going:
                break
            if self.is_outermost and all(way.is_done for way in going):
                self.refuse_later_use(statements[number:], going)
                return returned + [replace(way, result=NONE) for way in going]
            if self.is_outermost and any(way.spent and not way.is_done for way in going):
                self.refuse(statement, "the block has read what entered it, and the collector has taken nothing")
            ways = distinct(returned + [new for way in going for new in self.statement(statement, way)])
            if len(ways) > _MAX_WAYS:
                self.refuse(statement, "too many ways lead through this code")
        return ways

    def statement(self, node: cst.CSTNode, way: Way) -> list[Way]:
        """Follow one statement."""
        match node:
            case cst.SimpleStatementLine():
                ways = [way]
                for small in node.body:
                    ways = [
                        new for each in ways for new in (self.small(small, each) if each.result is None else [each])
                    ]
                return ways
            case cst.If():
                return [
                    new
                    for test_way, test in self.evaluate(node.test, way)
                    for new in self._branch(node, test, test_way)
                ]
            case cst.With() if node.asynchronous is None:
                return self._with(node, way)
        if self.mentions(node, way):
            self.refuse(node, "the stream or the collector goes through a statement of a form that is not known")
        return [self._forget(node, way)]

    def _branch(self, node: cst.If, test: Value, way: Way) -> list[Way]:
        ways: list[Way] = []
        if test.kind is not Kind.FALSE:
            ways += self.block(statements_of(node.body), [self.decide(node.test, way, True)])
        if test.kind is not Kind.TRUE:
            without = self.decide(node.test, way, False)
            if node.orelse is None:
                ways.append(without)
            elif isinstance(node.orelse, cst.If):
                ways += self.statement(node.orelse, without)
            else:
                ways += self.block(statements_of(node.orelse.body), [without])
        return ways

    def _with(self, node: cst.With, way: Way) -> list[Way]:
        ways = [way]
        for item in node.items:
            if any(value.is_tracked for each in ways for _, value in self.evaluate(item.item, each)):
                self.refuse(node, "a context manager is given the stream or the collector")
            if item.asname is not None and isinstance(item.asname.name, cst.Name):
                ways = [each.bind(item.asname.name.value, OTHER) for each in ways]
        return self.block(statements_of(node.body), ways)

    def small(self, node: cst.BaseSmallStatement, way: Way) -> list[Way]:
        """Follow a statement without a body."""
        match node:
            case cst.Expr():
                return [after for after, _ in self.evaluate(node.value, way)]
            case cst.Assign():
                return [
                    new
                    for after, value in self.evaluate(node.value, way)
                    for new in self._assign_all([target.target for target in node.targets], value, after, node)
                ]
            case cst.AnnAssign() if node.value is not None:
                return [
                    new
                    for after, value in self.evaluate(node.value, way)
                    for new in self._assign_all([node.target], value, after, node)
                ]
            case cst.Return():
                if node.value is None:
                    return [replace(way, result=NONE)]
                return [replace(after, result=value) for after, value in self.evaluate(node.value, way)]
            case cst.Raise():
                return []
            case cst.Assert() | cst.AnnAssign():
                return [way]
            case cst.Del():
                return [way]
            case cst.ImportFrom():
                return [way]
            case cst.AugAssign() if not self.mentions(node, way):
                return [self._forget(node, way)]
        if not isinstance(node, _EFFECTLESS):
            self.refuse(node, "it is changed in place, or used in a form that is not known")
        return [way]

    def _assign_all(
        self, targets: Sequence[cst.BaseExpression], value: Value, way: Way, node: cst.CSTNode
    ) -> list[Way]:
        ways = [way]
        for target in targets:
            ways = [new for each in ways for new in self._assign(target, value, each, node)]
        return ways

    def _assign(self, target: cst.BaseExpression, value: Value, way: Way, node: cst.CSTNode) -> list[Way]:
        match target:
            case cst.Name():
                return [way.bind(target.value, value)]
            case cst.Tuple() | cst.List():
                ways = [way]
                for element, part in zip(target.elements, self._taken_apart(target, value, node), strict=True):
                    ways = [new for each in ways for new in self._assign(element.value, part, each, node)]
                return ways
            case cst.Attribute():
                return [
                    self._set_attribute(target, value, after, owner, node)
                    for after, owner in self.evaluate(target.value, way)
                ]
            case cst.Subscript(value=cst.Name() as holder) if way.names.get(holder.value, OTHER).kind is Kind.KEYWORDS:
                key = self.text_of_index(target)
                if key is not None:
                    return [way.bind(holder.value, way.names[holder.value].with_item(key, value))]
        if value.is_tracked or self.mentions(target, way):
            self.refuse(node, "a part of the stream is written into, or kept where it is not followed")
        return [way]

    def _taken_apart(self, target: cst.Tuple | cst.List, value: Value, node: cst.CSTNode) -> list[Value]:
        """Return what each element of a target gets; a star takes what stands in the middle."""
        wanted = len(target.elements)
        star = next((at for at, item in enumerate(target.elements) if isinstance(item, cst.StarredElement)), None)
        if value.kind is not Kind.TUPLE:
            if value.is_tracked:
                self.refuse(node, "what it is taken apart into is not known")
            return [DERIVED if value.kind is Kind.DERIVED else OTHER] * wanted
        if value.label == LAST:
            return [DERIVED] * (wanted - 1) + [value.parts[-1]]
        parts = list(value.parts)
        if star is not None:
            behind = wanted - star - 1
            parts = [*parts[:star], OTHER, *parts[len(parts) - behind :]]
        if len(parts) != wanted:
            self.refuse(node, f"{len(value.parts)} values for {wanted} names")
        return parts

    def _set_attribute(self, target: cst.Attribute, value: Value, way: Way, owner: Value, node: cst.CSTNode) -> Way:
        name = target.attr.value
        if owner.kind is Kind.STREAM and name == "residual":
            whole = value.kind is Kind.STATE and way.is_lone
            return replace(way, residual=SUM if whole else value, has_residual=value.kind is not Kind.NONE)
        if owner.kind is Kind.STREAM and name == "pending" and value.kind in (Kind.NONE, Kind.OTHER):
            return replace(way, has_pending=value.kind is not Kind.NONE)
        if owner.kind is Kind.BATCH and name == "residual_stream" and value.kind is Kind.STREAM:
            return way
        # What goes along with the stream to the end of the block is not the stream (0.5.23: row transport).
        if owner.kind is Kind.STREAM and name == "transport" and not value.reaches_stream:
            return way
        if owner.reaches_stream or value.is_tracked:
            self.refuse(node, "a part of the stream is written into, or kept where it is not followed")
        return way

    def _forget(self, node: cst.CSTNode, way: Way) -> Way:
        """Return the way with every name that a passed-over statement binds holding something else."""
        names = {name.value for target in find(node, cst.AssignTarget) for name in find(target, cst.Name)}
        names |= {node.target.value} if isinstance(node, cst.AugAssign) and isinstance(node.target, cst.Name) else set()
        names |= {node.name.value} if isinstance(node, cst.FunctionDef | cst.ClassDef) else set()
        return replace(way, names={**way.names, **dict.fromkeys(names, OTHER)})

    def refuse_later_use(self, statements: Sequence[cst.CSTNode], ways: list[Way]) -> None:
        """Object where the collector is used again behind the place at which it has taken the state."""
        held = {name: value.kind for way in ways for name, value in way.names.items() if _holds_collector(value)}
        for statement in statements:
            for name in find(statement, cst.Name):
                if name.value in held and not self.is_harmless_use(name, held[name.value]):
                    self.refuse(statement, "it is used again behind the place at which it takes the state")


def _holds_collector(value: Value) -> bool:
    return value.kind in (Kind.COLLECTOR, Kind.TAKES) or any(_holds_collector(part) for part in value.parts)
