"""Questions about the surroundings of a name that several rules ask."""

from collections.abc import Callable

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.source.fragments import last_name
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.occurrences import Occurrence

# A list of layers made into another collection, or put into order, holds the same layers.
COPY = m.Call(
    func=m.Name("list") | m.Name("set") | m.Name("tuple") | m.Name("sorted") | m.Name("frozenset"), args=[m.Arg()]
)


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


def in_condition(occurrence: Occurrence) -> bool:
    """Tell whether the reference takes part in a condition: tested, or joined to one that is kept or returned."""
    node = occurrence.reference
    joined = False
    for ancestor in occurrence.ancestors():
        if isinstance(ancestor, cst.If | cst.IfExp | cst.While | cst.Assert | cst.CompIf):
            return ancestor.test is node
        if isinstance(ancestor, cst.ComparisonTarget):
            node = ancestor
            continue
        if not isinstance(ancestor, cst.BooleanOperation | cst.UnaryOperation | cst.Comparison):
            kept = isinstance(ancestor, cst.Assign | cst.AnnAssign | cst.Return | cst.Lambda | cst.Arg)
            return joined and kept
        joined = True
        node = ancestor
    return False


def assigned_to(occurrence: Occurrence) -> cst.Assign | cst.AnnAssign | None:
    """Return the assignment in whose value the reference stands, however deep."""
    node = occurrence.reference
    for ancestor in occurrence.ancestors():
        if isinstance(ancestor, cst.Assign | cst.AnnAssign):
            return ancestor if ancestor.value is node else None
        if isinstance(ancestor, cst.BaseStatement | cst.BaseSmallStatement):
            return None
        node = ancestor
    return None


def assignment_of(occurrence: Occurrence) -> cst.Assign | cst.AnnAssign | None:
    """Return the assignment of one target that the reference is, or whose value it is part of."""
    parent = occurrence.parent
    if isinstance(parent, cst.AnnAssign) and parent.target is occurrence.reference:
        return parent
    found = occurrence.fragment.parent_of(parent) if isinstance(parent, cst.AssignTarget) else assigned_to(occurrence)
    if isinstance(found, cst.Assign):
        return found if len(found.targets) == 1 else None
    return found if isinstance(found, cst.AnnAssign) else None


def target_of(assign: cst.Assign | cst.AnnAssign) -> cst.BaseExpression:
    """Return the only target of an assignment."""
    return assign.targets[0].target if isinstance(assign, cst.Assign) else assign.target


def is_logits_processor(call: cst.Call) -> bool:
    """Tell whether a call runs the logits processor."""
    return last_name(call.func) == "logits_processor"


def is_len_of(node: cst.CSTNode, kind: Kind) -> bool:
    """Tell whether `node` is `len(x)` of something of that kind."""
    if not isinstance(node, cst.Call) or not m.matches(node, m.Call(func=m.Name("len"), args=[m.Arg()])):
        return False
    return is_kind(node.args[0].value, kind)


def choices_of(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what a conditional expression chooses from; any other expression alone."""
    if isinstance(node, cst.IfExp):
        return [*choices_of(node.body), *choices_of(node.orelse)]
    return [node]


def chooser_of(occurrence: Occurrence) -> tuple[cst.CSTNode, cst.CSTNode]:
    """Return the outermost conditional expression that chooses the reference, or it itself, and what holds that."""
    node = occurrence.reference
    for ancestor in occurrence.ancestors():
        if not isinstance(ancestor, cst.IfExp) or ancestor.test is node:
            return node, ancestor
        node = ancestor
    return node, node


def layer_offset(value: cst.BaseExpression) -> int | None:
    """Return what a layer-list expression adds to each id it is given: 1 for `[i + 1 for i in ids]`.

    A list of its own, or a list passed on as it is, adds nothing; None means that the shape is not known.
    """
    if isinstance(value, cst.List | cst.Tuple | cst.Name | cst.Attribute):
        return 0
    if isinstance(value, cst.Call) and m.matches(value, COPY):
        return layer_offset(value.args[0].value)
    if not isinstance(value, cst.ListComp | cst.SetComp | cst.GeneratorExp):
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
