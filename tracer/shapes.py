"""Questions about the surroundings of a name that several rules ask."""

from collections.abc import Callable

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.fragments import last_name
from auxtap.tracer.names import Kind, kind_of
from auxtap.tracer.occurrences import Occurrence


def is_kind(node: cst.CSTNode, kind: Kind) -> bool:
    """Tell whether `node` is a name or an attribute of that kind."""
    if not isinstance(node, cst.Name | cst.Attribute):
        return False
    name = last_name(node)
    return name is not None and kind_of(name) is kind


def is_family(node: cst.CSTNode) -> bool:
    """Tell whether `node` is a name or an attribute of the capture family."""
    name = last_name(node) if isinstance(node, cst.Name | cst.Attribute) else None
    return name is not None and kind_of(name) is not None


def assigned_value(occurrence: Occurrence) -> cst.BaseExpression | None:
    """Return what is assigned to the reference, when it is the only target of an assignment."""
    parent = occurrence.parent
    if isinstance(parent, cst.AnnAssign) and parent.target is occurrence.reference:
        return parent.value
    if not isinstance(parent, cst.AssignTarget):
        return None
    assign = occurrence.fragment.parent_of(parent)
    if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
        return assign.value
    return None


def enclosing_call(occurrence: Occurrence, wanted: Callable[[cst.Call], bool]) -> cst.Call | None:
    """Return the innermost call around the reference within its statement that is `wanted`."""
    for ancestor in occurrence.ancestors():
        if isinstance(ancestor, cst.BaseStatement | cst.BaseSmallStatement):
            return None
        if isinstance(ancestor, cst.Call) and wanted(ancestor):
            return ancestor
    return None


def call_argument(occurrence: Occurrence) -> tuple[cst.Arg | None, cst.Call | None]:
    """Return the innermost argument that the name is (part of), and its call.

    A name within a conditional expression still belongs to the argument; one that a nested call takes does not.
    """
    for ancestor in occurrence.ancestors():
        if isinstance(ancestor, cst.Arg):
            call = occurrence.fragment.parent_of(ancestor)
            return ancestor, call if isinstance(call, cst.Call) else None
        if not isinstance(ancestor, cst.IfExp):
            return None, None
    return None, None


def function_name(occurrence: Occurrence) -> str | None:
    """Return the name of the innermost enclosing function."""
    function = occurrence.function
    return None if function is None else function.name.value


def is_conditional(occurrence: Occurrence) -> bool:
    """Tell whether a branch, a loop or a handler stands between the name and its function."""
    for ancestor in occurrence.ancestors():
        if isinstance(ancestor, cst.FunctionDef):
            return False
        if isinstance(ancestor, cst.If | cst.For | cst.While | cst.Try | cst.ExceptHandler):
            return True
    return False


def is_tested(occurrence: Occurrence) -> bool:
    """Tell whether the reference takes part, by and / or / not, in the test of a branch."""
    node = occurrence.reference
    for ancestor in occurrence.ancestors():
        if isinstance(ancestor, cst.If | cst.IfExp | cst.While | cst.Assert):
            return ancestor.test is node
        if not isinstance(ancestor, cst.BooleanOperation | cst.UnaryOperation | cst.Comparison):
            return False
        node = ancestor
    return False


def layer_offset(value: cst.BaseExpression) -> int | None:
    """Return what a layer-list expression adds to each id it is given: 1 for `[i + 1 for i in ids]`.

    A list of its own, or a list passed on as it is, adds nothing; None means that the shape is not known.
    """
    if isinstance(value, cst.List | cst.Name | cst.Attribute):
        return 0
    if not isinstance(value, cst.ListComp):
        return None
    target, element = value.for_in.target, value.elt
    if not isinstance(target, cst.Name):
        return None
    if m.matches(element, m.Name(target.value)):
        return 0
    if isinstance(element, cst.BinaryOperation) and m.matches(element.left, m.Name(target.value)):
        sign = {cst.Add: 1, cst.Subtract: -1}.get(type(element.operator))
        if sign is not None and isinstance(element.right, cst.Integer):
            return sign * int(element.right.value, 0)
    return None
