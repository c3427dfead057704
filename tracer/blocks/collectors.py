"""Read the class of a collector: which of its methods keep a copy of a state, in the order in which they are called."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.blocks.class_forms import class_objections
from auxtap.tracer.blocks.handing import Collector
from auxtap.tracer.blocks.naming import FoundFunction, Names
from auxtap.tracer.flow.classes import FoundClass
from auxtap.tracer.report.readings import Objection, SourceLine
from auxtap.tracer.source.bodies import statements_of

# A matcher of any node: libcst's own unions of matchers are invariant, and do not take what `|` makes of two.
Pattern = Any

_SELF = m.Name("self")


def _own(name: str) -> m.Attribute:
    return m.Attribute(value=_SELF, attr=m.Name(name))


def _line(*small: Pattern) -> m.SimpleStatementLine:
    return m.SimpleStatementLine(body=list(small))


def _set(target: Pattern, value: Pattern) -> Pattern:
    assign = m.Assign(targets=[m.AssignTarget(target=target)], value=value)
    return _line(assign | m.AnnAssign(target=target, value=value))


_INDEX, _WIDTH, _BUFFER, _COUNT = (_own(name) for name in ("_idx", "_feature_size", "_buffer", "_num_captures"))
_DOCSTRING = _line(m.Expr(value=m.SimpleString() | m.ConcatenatedString()))
_GUARD = m.If(body=m.IndentedBlock(body=[_line(m.Raise())]), orelse=None) | _line(m.Assert())
_LAST_WIDTH = m.Call(
    func=m.Name("int"),
    args=[m.Arg(m.Subscript(value=m.Attribute(attr=m.Name("shape"))))],
)
_PRODUCT = m.BinaryOperation(operator=m.Multiply())
_NEW_BUFFER = m.Call(func=m.Attribute(attr=m.Name("new_empty")))
_BEGIN = _set(m.Name("start"), m.BinaryOperation(left=_INDEX, operator=m.Multiply(), right=_WIDTH))
_PLACE = m.Subscript(
    value=_BUFFER,
    slice=[
        m.SubscriptElement(slice=m.Index(value=m.Ellipsis())),
        m.SubscriptElement(
            slice=m.Slice(
                lower=m.Name("start"),
                upper=m.BinaryOperation(left=m.Name("start"), operator=m.Add(), right=_WIDTH),
                step=None,
            )
        ),
    ],
)
_STEP = _line(m.AugAssign(target=_INDEX, operator=m.AddAssign(), value=m.Integer("1")))
# The buffer is made, or one that was given is checked, when the first state comes.
_SETS_UP = (
    _set(m.Name("feature_size"), _LAST_WIDTH),
    _set(_WIDTH, m.Name("feature_size")),
    _set(m.Name("shape"), m.Tuple()),
    _set(_BUFFER, _NEW_BUFFER),
    _GUARD,
)
_FRESH = m.If(test=m.Comparison(left=_BUFFER | _WIDTH, comparisons=[m.ComparisonTarget(m.Is(), m.Name("None"))]))
_HIDDEN = m.Arg(m.Name("hidden"), keyword=None)
_APPENDS = _line(m.Expr(m.Call(func=_own("append"), args=[_HIDDEN])))
_COPIES = m.Call(func=m.Attribute(value=m.Name("hidden"), attr=m.Name("clone")), args=[])
_KEEPS_COPY = _line(
    m.Expr(m.Call(func=_own("append"), args=[m.Arg(m.IfExp(m.Name("owned"), m.Name("hidden"), _COPIES), keyword=None)]))
)
_IN_PLACE = _line(
    m.Expr(
        m.Call(func=m.Attribute(value=m.Call(func=_own("slot"), args=[_HIDDEN]), attr=m.Name("copy_")), args=[_HIDDEN])
    )
)
_WRITES = _line(m.Expr(m.Call(func=m.Attribute(value=_PLACE, attr=m.Name("copy_")), args=[_HIDDEN])))
_EACH = m.For(target=m.Name("hidden"), iter=m.Name("hiddens"), body=m.IndentedBlock(body=[_APPENDS]), orelse=None)
_SETS_FIELDS = (
    _set(_COUNT, m.Call(func=m.Name("int"), args=[m.Arg(m.Name("num_captures"))])),
    _set(_BUFFER, m.Name("None") | m.Name("out")),
    _set(_WIDTH, m.Name("None")),
    _set(_INDEX, m.Integer("0")),
)
_MAKES = _line(
    m.Return(
        m.Call(
            func=m.Name("cls"),
            args=[m.Arg(m.Name("num_captures"), keyword=None), m.Arg(m.Attribute(), keyword=m.Name("out"))],
        )
    )
)


def _returns(value: Pattern) -> Pattern:
    return _line(m.Return(value))


def _exactly(*wanted: Pattern) -> Callable[[Sequence[cst.CSTNode]], bool]:
    def tell(body: Sequence[cst.CSTNode]) -> bool:
        return len(body) == len(wanted) and all(map(m.matches, body, wanted))

    return tell


def _in_order(*wanted: Pattern) -> Callable[[Sequence[cst.CSTNode]], bool]:
    """Tell of a body whether these stand in it once each, in order, and besides them only what sets the buffer up."""

    def tell(body: Sequence[cst.CSTNode]) -> bool:
        left = list(wanted)
        for statement in body:
            if left and m.matches(statement, left[0]):
                left.pop(0)
            elif not _sets_up(statement):
                return False
        return not left

    return tell


def _sets_up(statement: cst.CSTNode) -> bool:
    if isinstance(statement, cst.If) and m.matches(statement, _FRESH):
        inner = [*statements_of(statement.body)]
        orelse = statement.orelse
        if isinstance(orelse, cst.Else):
            return False
        return all(map(_sets_up, inner)) and (orelse is None or _sets_up(orelse))
    return any(m.matches(statement, pattern) for pattern in _SETS_UP)


def _any_of(*tellers: Callable[[Sequence[cst.CSTNode]], bool]) -> Callable[[Sequence[cst.CSTNode]], bool]:
    return lambda body: any(tell(body) for tell in tellers)


_LIST_METHODS = {"capture": _exactly(_KEEPS_COPY)}
_PACKER_METHODS = {
    "__init__": lambda body: all(any(m.matches(item, field) for field in _SETS_FIELDS) for item in body),
    "for_batch": _exactly(_MAKES),
    "slot": _in_order(_BEGIN, _STEP, _returns(_PLACE)),
    "append": _any_of(_exactly(_IN_PLACE), _in_order(_BEGIN, _WRITES, _STEP)),
    "extend": _exactly(_EACH),
    "capture": _exactly(_APPENDS),
    "__len__": _exactly(_returns(_INDEX)),
    "finalize": _any_of(_exactly(_GUARD, _returns(_BUFFER)), _exactly(_returns(_BUFFER))),
}


@dataclass(frozen=True)
class _Family:
    """A way to collect: what its methods must say, and what it gives."""

    bases: tuple[str, ...]
    methods: dict[str, Callable[[Sequence[cst.CSTNode]], bool]]
    needs: frozenset[str]
    collector: Collector


_FAMILIES = (
    _Family(
        ("list",),
        _LIST_METHODS,
        frozenset({"capture"}),
        Collector(copies=True, takes=frozenset({"capture"}), finish=frozenset()),
    ),
    _Family(
        (),
        _PACKER_METHODS,
        frozenset({"__init__", "append", "__len__", "finalize"}),
        Collector(copies=True, takes=frozenset({"append", "capture"}), finish=frozenset({"finalize"})),
    ),
)


def read_collector(names: Names, path: PurePosixPath, name: str, at: SourceLine) -> Collector | Objection:
    """Return what the collector class keeps that a file calls `name`; `at` is where it is made."""
    found = names.find_class(name, path)
    family = None if found is None else next((each for each in _FAMILIES if each.bases == found.outline.bases), None)
    if found is None or family is None or not family.needs <= set(found.outline.methods):
        return Objection(at, f"what a {name} keeps is not known")
    objections = class_objections(names, found)
    if objections:
        return objections[0]
    for method in found.outline.methods:
        function = names.own(found.file, found.name, method)
        if function is not None and not _is_known(function, family):
            return _unknown(names, found, function)
    takes = family.collector.takes & set(found.outline.methods)
    return Collector(copies=True, takes=takes, finish=family.collector.finish)


def _is_known(function: FoundFunction, family: _Family) -> bool:
    tell = family.methods.get(function.node.name.value)
    body = [item for item in statements_of(function.node.body) if not m.matches(item, _DOCSTRING)]
    plain = all(m.matches(item.decorator, m.Name("classmethod")) for item in function.node.decorators)
    return tell is not None and plain and _has_usual_parameters(function) and tell(body)


def _has_usual_parameters(function: FoundFunction) -> bool:
    """Tell whether `owned` is false unless it is given."""
    owned = [item for item in function.node.params.kwonly_params if item.name.value == "owned"]
    return all(item.default is not None and m.matches(item.default, m.Name("False")) for item in owned)


def _unknown(names: Names, found: FoundClass, function: FoundFunction) -> Objection:
    line = function.fragment.line_of(function.node)
    code = names.index.source(found.file).code_at(line)
    place = SourceLine(found.file, line, function.scope, code)
    return Objection(place, f"what {function.scope} does with a state is not of a known form")
