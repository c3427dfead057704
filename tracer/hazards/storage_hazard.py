"""A state that is kept as it is, and a layer that writes into the same storage afterwards.

Two steps are followed: from the call that is given the kept state into the `forward` of the class that is called, and
from there into the norm that adds in place. What else a layer calls (its attention, its experts) is not looked into.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.tracer.branches.stage_uses import names_within
from auxtap.tracer.flow.classes import ClassIndex, FoundClass
from auxtap.tracer.flow.evidence import evidence_at, evidence_of
from auxtap.tracer.hazards.capturing import capturing_functions, sites_of
from auxtap.tracer.hazards.found import Found
from auxtap.tracer.hazards.settings import Settings
from auxtap.tracer.report.entries import CaptureSite, FileTrace
from auxtap.tracer.report.trace_report import Evidence
from auxtap.tracer.source.bodies import assign_targets, assigned_locals, statements_of
from auxtap.tracer.source.fragments import Fragment, SourceFile, last_name
from auxtap.tracer.source.walk import find

_NORMS = SRT_ROOT / "layers/layernorm.py"
_OF_SELF = m.Attribute(value=m.Name("self"))
_MAX_DEPTH = 2


@dataclass(frozen=True, eq=False)
class _Body:
    """A function of a class, with what it takes to cite it."""

    owner: FoundClass
    source: SourceFile
    fragment: Fragment
    function: cst.FunctionDef

    def cite(self, node: cst.CSTNode) -> Evidence:
        return evidence_at(self.source, self.fragment, node)

    @property
    def parameters(self) -> list[str]:
        """The names that arguments are bound to, self left out."""
        return [param.name.value for param in self.function.params.params][1:]


def reused_storage(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Found]:
    """A tensor that is kept as it is, by a plain list, and that a later layer writes over."""
    plain = {site.scope for site in sites_of(trace, "accumulator_init") if site.value is None}
    kept = [site for site in sites_of(trace, "append") if site.scope in plain and (site.value or "").isidentifier()]
    if not kept:
        return
    writes = _Writes(index)
    for fragment, function in capturing_functions(index, trace):
        owner = index.classes_of(trace.file).get(fragment.unit.classes[0]) if fragment.unit.classes else None
        if owner is None:
            continue
        body = _Body(owner, index.source(trace.file), fragment, function)
        for site in kept:
            if fragment.unit.first_line <= site.line <= fragment.unit.last_line:
                lines = writes.after_capture(body, site)
                if lines:
                    yield Found((evidence_of(trace, site), *lines), default_on=True)


class _Writes:
    """Looks for the line that writes over a value, through the calls that the value is handed to."""

    def __init__(self, index: ClassIndex) -> None:
        self._index = index

    def after_capture(self, body: _Body, site: CaptureSite) -> tuple[Evidence, ...]:
        """Return the lines that write over what `site` keeps: behind it, or in the next round of its loop."""
        appended = [call for call in find(body.function, cst.Call) if body.fragment.line_of(call) == site.line]
        if not appended:
            return ()
        names = {site.value or ""} | self._sources_of(body, site.value or "")
        loop = next((item for item in body.fragment.ancestors_of(appended[0]) if isinstance(item, cst.For)), None)
        within = set() if loop is None else set(find(loop.body, cst.Call))
        for call in find(body.function.body, cst.Call):
            behind = body.fragment.line_of(call) > site.line
            if behind or call in within:
                lines = self._by_call(body, call, names, depth=1)
                if lines:
                    return lines
        return ()

    def _sources_of(self, body: _Body, name: str) -> set[str]:
        """Return the names that `name` is another name for."""
        target = m.AssignTarget(target=m.Name(name))
        assigns = find(body.function.body, cst.Assign, m.Assign(targets=[target], value=m.Name()))
        return {last_name(assign.value) or "" for assign in assigns}

    def _by_call(self, body: _Body, call: cst.Call, names: set[str], depth: int) -> tuple[Evidence, ...]:
        """Return where a call writes over one of `names`, which it is given: the call first, the write last."""
        if depth > _MAX_DEPTH or not names & set(_given_names(call)):
            return ()
        for found in self._called(body, call):
            for inner in self._methods(found):
                bound = _bind(call, inner.parameters)
                given = {parameter for parameter, name in bound.items() if name in names}
                if not given:
                    continue
                written = _written_in_place(inner)
                if written is not None and set(written.names) <= set(bound) and given & set(written.names):
                    return (body.cite(call), inner.cite(written.call))
                if inner.function.name.value == "forward":
                    lines = self._in_suite(inner, statements_of(inner.function.body), given, depth + 1)
                    if lines:
                        return lines
        return ()

    def _in_suite(
        self, body: _Body, statements: Iterable[cst.CSTNode], names: set[str], depth: int
    ) -> tuple[Evidence, ...]:
        """Return the first write to what `names` hold; follows their new names and forgets those bound anew."""
        for statement in statements:
            if isinstance(statement, cst.If):
                lines, names_after = self._in_branches(body, statement, names, depth)
                names.clear()
                names |= names_after
            elif isinstance(statement, cst.BaseCompoundStatement):
                inner = getattr(statement, "body", None)
                lines = () if inner is None else self._in_suite(body, statements_of(inner), names, depth)
            else:
                lines = self._in_line(body, statement, names, depth)
            if lines:
                return lines
        return ()

    def _in_branches(
        self, body: _Body, branch: cst.If, names: set[str], depth: int
    ) -> tuple[tuple[Evidence, ...], set[str]]:
        first, other = set(names), set(names)
        lines = self._in_suite(body, statements_of(branch.body), first, depth)
        if not lines and isinstance(branch.orelse, cst.If):
            lines = self._in_suite(body, [branch.orelse], other, depth)
        elif not lines and branch.orelse is not None:
            lines = self._in_suite(body, statements_of(branch.orelse.body), other, depth)
        return lines, first | other

    def _in_line(self, body: _Body, statement: cst.CSTNode, names: set[str], depth: int) -> tuple[Evidence, ...]:
        for call in find(statement, cst.Call):
            method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
            if method.endswith("_") and not method.endswith("__") and _base(call.func) in names:
                return (body.cite(call),)
            lines = self._by_call(body, call, names, depth)
            if lines:
                return lines
        for changed in find(statement, cst.AugAssign):
            if _base(changed.target) in names:
                return (body.cite(changed),)
        for target in assign_targets([statement]):
            if isinstance(target, cst.Subscript) and _base(target) in names:
                return (body.cite(target),)
        _rename(statement, names)
        return ()

    def _methods(self, found: FoundClass) -> Iterator[_Body]:
        """Yield the methods in which a class may write: `forward`, and what a norm calls instead by device."""
        for owner in self._index.lineage(found):
            source = self._index.source(owner.file)
            for unit in source.outline.units:
                if unit.classes == (owner.name,) and "forward" in (unit.name or ""):
                    fragment = source.fragment(unit)
                    for function in find(fragment.module, cst.FunctionDef):
                        yield _Body(owner, source, fragment, function)
                        break

    def _called(self, body: _Body, call: cst.Call) -> Iterator[FoundClass]:
        """Yield the classes that `self.norm(...)`, `self.layers[i](...)` or `layer(...)` may be an object of."""
        for attribute in _called_attributes(body.function, call):
            for owner in self._index.lineage(body.owner):
                yield from self._built_as(owner, attribute)

    def _built_as(self, owner: FoundClass, attribute: str) -> Iterator[FoundClass]:
        """Yield the classes that stand in what `__init__` assigns to an attribute, or in a function used there."""
        source = self._index.source(owner.file)
        for unit in source.outline.units:
            if unit.classes != (owner.name,) or unit.name != "__init__" or attribute not in source.text_of(unit):
                continue
            module = source.fragment(unit).module
            makers = {item.name.value: item for item in find(module, cst.FunctionDef)}
            for assign in find(module, cst.Assign):
                if attribute in {last_name(item) for item in assign_targets([assign]) if m.matches(item, _OF_SELF)}:
                    names = names_within([assign.value])
                    names |= names_within([makers[name] for name in names & set(makers) - {"__init__"}])
                    yield from self._classes(sorted(names), owner)

    def _classes(self, names: Sequence[str], owner: FoundClass) -> Iterator[FoundClass]:
        norms = self._index.classes_of(_NORMS) if _NORMS in self._index.tree.files else {}
        for name in names:
            found = (
                self._index.classes_of(owner.file).get(name) or norms.get(name) or self._index.find(name, owner.file)
            )
            if found is not None:
                yield found


@dataclass(frozen=True)
class _InPlace:
    """A call whose results are what it was given: the parameters that it writes."""

    call: cst.Call
    names: tuple[str, ...]


def _written_in_place(body: _Body) -> _InPlace | None:
    """Return a call for its effect whose arguments are the result in the next line: `add_norm(x, r); return x, r`."""
    result = m.SimpleStatementLine(body=[m.Return() | m.Assign(value=m.Tuple())])
    for block in find(body.function, cst.IndentedBlock):
        for statement, after in zip(block.body, block.body[1:], strict=False):
            call = _call_for_effect(statement)
            if call is None or not m.matches(after, result):
                continue
            returned = names_within([after])
            written = tuple(name for name in _given_names(call) if name in returned and name in body.parameters)
            if written:
                return _InPlace(call, written)
    return None


def _call_for_effect(statement: cst.CSTNode) -> cst.Call | None:
    if isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.Expr):
        value = statement.body[0].value
        return value if isinstance(value, cst.Call) else None
    return None


def _given_names(call: cst.Call) -> list[str]:
    return [argument.value.value for argument in call.args if isinstance(argument.value, cst.Name)]


def _bind(call: cst.Call, parameters: Sequence[str]) -> dict[str, str]:
    """Return for each parameter that is given the name that it is given, empty for any other expression."""
    bound: dict[str, str] = {}
    position = 0
    for argument in call.args:
        name = argument.value.value if isinstance(argument.value, cst.Name) else ""
        if argument.keyword is not None:
            bound[argument.keyword.value] = name
        elif not argument.star and position < len(parameters):
            bound[parameters[position]] = name
            position += 1
    return bound


def _called_attributes(function: cst.FunctionDef, call: cst.Call) -> set[str]:
    """Return the attributes of self that the called object is, or is taken from."""
    called: cst.BaseExpression = call.func
    if m.matches(called, m.Attribute(attr=m.Name("forward"))) and isinstance(called, cst.Attribute):
        called = called.value
    if isinstance(called, cst.Subscript):
        called = called.value
    if isinstance(called, cst.Attribute):
        return {called.attr.value} if m.matches(called, _OF_SELF) else set()
    if not isinstance(called, cst.Name):
        return set()
    origins: list[cst.CSTNode] = []
    for loop in find(function.body, cst.For):
        if called.value in names_within([loop.target]):
            origins.append(loop.iter)
    target = m.AssignTarget(target=m.Name(called.value))
    origins += [assign.value for assign in find(function.body, cst.Assign, m.Assign(targets=[target]))]
    return {item.attr.value for origin in origins for item in find(origin, cst.Attribute, _OF_SELF)}


def _base(node: cst.CSTNode) -> str | None:
    """Return `x` for `x`, `x.mul_` and `x[0]`."""
    while isinstance(node, cst.Attribute | cst.Subscript):
        node = node.value
    return node.value if isinstance(node, cst.Name) else None


def _rename(statement: cst.CSTNode, names: set[str]) -> None:
    """Follow an assignment: `b = a` gives a second name, anything else takes the name away."""
    for assign in find(statement, cst.Assign):
        targets = assigned_locals([assign])
        if isinstance(assign.value, cst.Name) and assign.value.value in names:
            names |= targets
        else:
            names -= targets
