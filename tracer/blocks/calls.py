"""Follow calls: kernels and collectives that are known by name, and the tree's own functions, which are read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import libcst as cst
import libcst.matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.tracer.blocks.expressions import Valued
from auxtap.tracer.blocks.frames import ObjectedError
from auxtap.tracer.blocks.kernels import MOVER, MOVES, Given
from auxtap.tracer.blocks.members import Members
from auxtap.tracer.blocks.naming import FoundFunction
from auxtap.tracer.blocks.taking import Taking
from auxtap.tracer.blocks.values import (
    DERIVED,
    FALSE,
    NONE,
    OTHER,
    STATE,
    TENSORS,
    TRUE,
    Kind,
    Value,
    Way,
)
from auxtap.tracer.report.readings import Objection

_STREAM_FILE = SRT_ROOT / "layers/layer_boundary/residual/stream.py"
_STREAM_CLASS = "ResidualStream"
# What a producer puts out, written down in the stream before its residual update (`leave` in 0.5.21).
_RECORDS = frozenset({"record", "leave"})

# What came of calls: the same function, called on a way that stands alike, is followed once for all blocks of a tree.
Memory = dict[object, list[Way] | Objection]


class Calls(Taking):
    """Evaluates calls."""

    def __init__(self, members: Members, memory: Memory, *, copies: bool, takes: frozenset[str]) -> None:
        super().__init__(members.names, copies=copies, takes=takes)
        self._members = members
        self._memory = memory

    def run(self, function: FoundFunction, ways: list[Way]) -> list[Way]:
        """Return the ways on which a function returns; see `Follower`."""
        raise NotImplementedError

    def call(self, node: cst.Call, way: Way) -> Valued:
        """Return what a call gives."""
        if m.matches(node.func, m.Name("super")):
            return [(way, Value(Kind.SUPER, parts=(way.names.get("self", OTHER),)))]
        results: Valued = []
        for after, callee in self._callee(node, way):
            for end, given in self._arguments(node, after):
                results += self._apply(node, callee, given, end)
        return results

    def _callee(self, node: cst.Call, way: Way) -> Valued:
        if not isinstance(node.func, cst.Attribute):
            return self.evaluate(node.func, way)
        method = node.func.attr.value
        results: Valued = []
        for after, owner in self.evaluate(node.func.value, way):
            of_tensor = owner.kind in TENSORS or owner.kind in (
                Kind.DERIVED,
                Kind.TUPLE,
                Kind.KEYWORDS,
                Kind.PENDING,
                Kind.STREAM,
            )
            value = (
                Value(Kind.MEMBER, label=method, parts=(owner,)) if of_tensor else self._attribute(owner, method, after)
            )
            results.append((after, value))
        return results

    def _arguments(self, node: cst.Call, way: Way) -> list[tuple[Way, tuple[Given, ...]]]:
        results: list[tuple[Way, tuple[Given, ...]]] = [(way, ())]
        for argument in node.args:
            keyword = argument.keyword.value if argument.keyword is not None else None
            results = [
                (end, (*given, Given(keyword, argument.star, value, argument.value)))
                for after, given in results
                for end, value in self.evaluate(argument.value, after)
            ]
        return results

    def _apply(self, node: cst.Call, callee: Value, given: tuple[Given, ...], way: Way) -> Valued:
        owner = callee.parts[0] if callee.kind is Kind.MEMBER else None
        if callee.kind is Kind.TAKES:
            return [(self.take(node, callee, given, way), NONE)]
        if owner is not None and owner.kind is Kind.KEYWORDS:
            return [(way, self._asked_for(node, owner, given))]
        if owner is not None and owner.kind in TENSORS:
            return [(way, self.method_of_tensor(node, callee.label, owner))]
        if owner is not None and owner.kind is Kind.PENDING:
            return [(way, STATE if callee.label in ("complete", "for_boundary") else OTHER)]
        if callee.label == "is_idle" and not given:
            return [(way, FALSE)]
        if callee.label == "getattr":
            return [(way, self.got(node, given))]
        if callee.label == MOVER and owner is not None and any(each.value.kind in TENSORS for each in given):
            self._check_moves(node, owner, given, way)
        known = self.known(node, callee, given, way)
        if known is not None:
            return known
        if not any(each.value.reaches_stream for each in given) and not (owner is not None and owner.is_tracked):
            derived = any(each.value.kind is Kind.DERIVED for each in given)
            return [(way, DERIVED if derived else OTHER)]
        return self._read(node, callee, given, way)

    def moves_rows(self, way: Way) -> bool:
        """Tell whether the followed function knows a way for rows to move, which it did not find to be none."""
        held = any(each.label in MOVES and each.is_there for each in way.names.values())
        me = way.names.get("self", OTHER)
        return held or (me.found is not None and bool(self._members.chosen(me.found, MOVER)))

    def _check_moves(self, node: cst.Call, owner: Value, given: tuple[Given, ...], way: Way) -> None:
        """Object unless every function that may move the rows hands on the tensor that it is given."""
        functions = [] if owner.found is None else self._members.chosen(owner.found, MOVER)
        if not functions:
            self.refuse(node, "what moves the rows between the ranks is not known")
        wanted = next(each.value.kind for each in given if each.value.kind in TENSORS)
        for function in functions:
            plain = [each.value for each in given if each.keyword is None and not each.star]
            names = self._bound(node, function, plain, self._keywords(node, given))
            for end in self.run(function, [replace(way, names=names, result=None)]):
                if end.result is None or end.result.kind is not wanted:
                    self.refuse(node, f"{function.scope} changes the rows that it moves")

    def _asked_for(self, node: cst.Call, keywords: Value, given: tuple[Given, ...]) -> Value:
        asked = given[0].value.label if given else ""
        method = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
        if method not in ("get", "pop") or not asked:
            self.refuse(node, "what is asked of the keywords is not known")
        found = keywords.item(asked)
        return found if found is not None else given[1].value if len(given) > 1 else NONE

    def _read(self, node: cst.Call, callee: Value, given: tuple[Given, ...], way: Way) -> Valued:
        """Follow a call into the tree's own function; what cannot be found is an objection."""
        if callee.kind is Kind.MEMBER and callee.parts[0].kind is Kind.STREAM:
            if callee.label == "check":
                return [(way, OTHER)]
            records = callee.label in _RECORDS and way.has_pending is False
            if records and given and given[0].value.kind is Kind.STATE:
                return [(replace(way, has_pending=True), STATE)]
        targets = self._targets(node, callee, way)
        if not targets:
            self.refuse(node, "what it does with the stream or the collector is not known")
        return [result for function, owner in targets for result in self._into(node, function, owner, given, way)]

    def _targets(self, node: cst.Call, callee: Value, way: Way) -> list[tuple[FoundFunction, Value | None]]:
        """Return the functions that a call may reach, each with the object that it is bound to."""
        names = self.lookup
        if callee.kind is Kind.NAME:
            found = names.find_function(callee.label, self.frame.file)
            return [] if found is None else [(found, None)]
        if callee.kind is not Kind.MEMBER:
            return []
        owner, label = callee.parts[0], callee.label
        if owner.kind is Kind.NAME:
            module = names.imported(self.frame.file, owner.label)
            found = None if module is None or module[1] else names.own(module[0], "", label)
            return [] if found is None else [(found, None)]
        bound: list[tuple[FoundFunction | None, Value]] = []
        if owner.kind is Kind.OBJECT and owner.found is not None:
            bound = [(names.method(owner.found, label), owner)]
        elif owner.kind is Kind.SUPER and self.frame.owner is not None and (me := owner.parts[0]).found is not None:
            bound = [(names.inherited(me.found, self.frame.owner, label), me)]
        elif owner.kind is Kind.STREAM:
            bound = [(names.own(_STREAM_FILE, _STREAM_CLASS, label), owner)]
        elif owner.kind is Kind.MEMBER and owner.parts[0].kind is Kind.OBJECT and owner.parts[0].found is not None:
            objects = self._members.objects(owner.parts[0].found, owner.label)
            bound = [(names.method(each.found, label), each) for each in objects if each.found is not None]
        return (
            [(function, value) for function, value in bound if function is not None] if all(f for f, _ in bound) else []
        )

    def _into(
        self, node: cst.Call, function: FoundFunction, owner: Value | None, given: tuple[Given, ...], way: Way
    ) -> Valued:
        start = replace(way, names=self._bind(node, function, owner, given), result=None)
        key = function.node, self.copies, self.takes, start.identity()
        if key not in self._memory:
            try:
                self._memory[key] = self.run(function, [start])
            except ObjectedError as objected:
                self._memory[key] = objected.objection
        inside = self._memory[key]
        if isinstance(inside, Objection):
            raise ObjectedError(inside)
        return [(replace(each, names=way.names, result=None), each.result or NONE) for each in inside]

    def _bind(
        self, node: cst.Call, function: FoundFunction, owner: Value | None, given: Sequence[Given]
    ) -> dict[str, Value]:
        if function.node.decorators:
            self.refuse(node, f"{function.scope} is decorated")
        if any(each.star == "*" for each in given):
            self.refuse(node, f"how its arguments reach {function.scope} is not known")
        values = [owner] if owner is not None else []
        values += [each.value for each in given if each.keyword is None and not each.star]
        return self._bound(node, function, values, self._keywords(node, given))

    def bind_head(self, function: FoundFunction, owner: Value, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return what the parameters of a method hold that is given these: by keyword, or by place as `#1`."""
        self.enter(function)
        try:
            placed = {int(name[1:]): value for name, value in values.items() if name.startswith("#")}
            plain = [placed.get(at, OTHER) for at in range(max(placed, default=-1) + 1)]
            named = [(name, value) for name, value in values.items() if not name.startswith(("#", "*"))]
            return self._bound(function.node, function, [owner, *plain], named)
        finally:
            self.leave()

    def _bound(
        self, node: cst.CSTNode, function: FoundFunction, values: Sequence[Value], keywords: Iterable[tuple[str, Value]]
    ) -> dict[str, Value]:
        parameters = function.node.params
        plain = [each.name.value for each in (*parameters.posonly_params, *parameters.params)]
        everything = (*parameters.posonly_params, *parameters.params, *parameters.kwonly_params)
        names = {each.name.value: self._default(each) for each in everything}
        if len(values) > len(plain):
            self.refuse(node, f"{function.scope} takes fewer arguments")
        names |= dict(zip(plain, values, strict=False))
        spare = Value(Kind.KEYWORDS)
        for keyword, value in keywords:
            if keyword in names:
                names[keyword] = value
            elif parameters.star_kwarg is not None:
                spare = spare.with_item(keyword, value)
            else:
                self.refuse(node, f"{function.scope} takes no {keyword}")
        if parameters.star_kwarg is not None:
            names[parameters.star_kwarg.name.value] = spare
        return names

    def _keywords(self, node: cst.Call, given: Sequence[Given]) -> list[tuple[str, Value]]:
        keywords: list[tuple[str, Value]] = []
        for each in given:
            if each.keyword is not None:
                keywords.append((each.keyword, each.value))
            elif each.star == "**":
                if each.value.kind is Kind.KEYWORDS:
                    keywords += zip(each.value.keys, each.value.parts, strict=True)
                elif each.value.reaches_stream:
                    self.refuse(node, "what its keywords hold is not known")
        return keywords

    def _default(self, parameter: cst.Param) -> Value:
        if isinstance(parameter.default, cst.Name):
            return {"None": NONE, "True": TRUE, "False": FALSE}.get(parameter.default.value, OTHER)
        return OTHER
