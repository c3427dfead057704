"""Read how the layers are marked that a loop then asks: `getattr(layer, "_is_layer_to_capture", False)`."""

from dataclasses import dataclass
from typing import Literal

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.blocks.naming import FoundFunction, Names
from auxtap.tracer.flow.classes import FoundClass
from auxtap.tracer.report.readings import Objection, SourceLine
from auxtap.tracer.source.bodies import statements_of

_LIST = "layers_to_capture"
# The method of a backbone that the tap calls where there is one.
SETTER = "set_eagle3_layers_to_capture"
_DOCSTRING = m.SimpleStatementLine(body=[m.Expr(m.SimpleString() | m.ConcatenatedString())])
_OWN_LIST = m.Attribute(value=m.Name("self"), attr=m.Name(_LIST))


@dataclass(frozen=True)
class MarkReading:
    """Who marks the layers: the backbone's own setter, or nothing that the tap calls; `objection` where it does it in
    a way that is not known."""

    way: Literal["setter", "nobody"]
    objection: Objection | None = None


def read_mark(names: Names, found: FoundClass, mark: str) -> MarkReading:
    """Return whether setting the layers on a backbone marks exactly the layers of its list."""
    setter = names.method(found, SETTER)
    if setter is None:
        return MarkReading("nobody")
    body = [item for item in statements_of(setter.node.body) if not m.matches(item, _DOCSTRING)]
    given = [item.name.value for item in setter.node.params.params][1:]
    if len(given) != 1 or setter.node.decorators:
        return MarkReading("setter", _objection(names, setter, setter.node))
    kept = m.Name(given[0]) | m.Call(func=m.Name("list"), args=[m.Arg(m.Name(given[0]))])
    sets = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(_OWN_LIST)], value=kept)])
    if body and not m.matches(body[0], sets):
        return MarkReading("setter", _objection(names, setter, body[0]))
    if len(body) == 1:
        return MarkReading("nobody")
    wrong = next((item for item in body[1:] if not _marks_each(item, given[0], mark)), None)
    if wrong is not None or len(body) != 2:
        return MarkReading("setter", _objection(names, setter, wrong or setter.node))
    return MarkReading("setter")


def _marks_each(statement: cst.CSTNode, given: str, mark: str) -> bool:
    """Tell whether a loop over the list marks the layer of each entry, those left aside that are no layers."""
    if not isinstance(statement, cst.For) or not isinstance(statement.target, cst.Name) or statement.orelse is not None:
        return False
    entry = m.Name(statement.target.value)
    layers = m.Attribute(value=m.Name("self"), attr=m.Name("layers"))
    layer = m.Subscript(value=layers, slice=[m.SubscriptElement(m.Index(entry))])
    text = m.SimpleString(f'"{mark}"') | m.SimpleString(f"'{mark}'")
    by_name = m.Expr(m.Call(func=m.Name("setattr"), args=[m.Arg(layer), m.Arg(text), m.Arg(m.Name("True"))]))
    plainly = m.Assign(targets=[m.AssignTarget(m.Attribute(value=layer, attr=m.Name(mark)))], value=m.Name("True"))
    marks = m.SimpleStatementLine(body=[by_name | plainly])
    count = m.Call(func=m.Name("len"), args=[m.Arg(layers)])
    exists = m.Comparison(left=entry, comparisons=[m.ComparisonTarget(m.LessThan(), count)])
    guarded = m.If(test=exists, body=m.IndentedBlock([marks]), orelse=None)
    over_list = m.matches(statement.iter, _OWN_LIST | m.Name(given))
    return over_list and m.matches(statement.body, m.IndentedBlock([marks | guarded]))


def _objection(names: Names, setter: FoundFunction, node: cst.CSTNode) -> Objection:
    line = setter.fragment.line_of(node)
    code = names.index.source(setter.file).code_at(line)
    return Objection(
        SourceLine(setter.file, line, setter.scope, code), "how it marks the layers is not of a known form"
    )
