"""Roles of the list of layers to capture, of marks on single layers, and of what else a setter assigns."""

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.sites.shapes import (
    COPY,
    assigned_to,
    assigned_value,
    assignment_of,
    call_argument,
    enclosing_call,
    function_name,
    in_condition,
    is_kind,
    is_len_of,
    layer_offset,
    target_of,
)
from auxtap.tracer.sites.site_registry import BOOL, EMPTY, EMPTY_LIST, NONE, Finding, rule
from auxtap.tracer.source.fragments import last_name, source_of
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.occurrences import Occurrence

_COLLECTION = m.List() | m.Tuple() | m.Set() | m.ListComp() | m.SetComp() | m.Name() | m.Attribute() | COPY


@rule("layer_test")
def _layer_test(occurrence: Occurrence) -> Finding | None:
    if occurrence.kind is Kind.MARK:
        read = m.matches(occurrence.reference, m.Call() | m.Attribute())
        return Finding(occurrence.reference) if read and in_condition(occurrence) else None
    target = occurrence.parent
    if occurrence.kind is Kind.LAYERS and m.matches(target, m.ComparisonTarget(operator=m.In() | m.NotIn())):
        # `layer.mark = i in layers` says which layers are marked; the mark is the site.
        assign = assigned_to(occurrence)
        marks = assign is not None and is_kind(target_of(assign), Kind.MARK)
        return None if marks or _argument_of_setattr(occurrence) is not None else Finding(target)
    return None


@rule("layers_init")
def _layers_init(occurrence: Occurrence) -> Finding | None:
    value = assigned_value(occurrence)
    if value is None or occurrence.kind is not Kind.LAYERS or not m.matches(value, EMPTY | NONE):
        return None
    return Finding(occurrence.parent, value=None if m.matches(value, EMPTY_LIST) else source_of(value))


@rule("layers_set")
def _layers_set(occurrence: Occurrence) -> Finding | None:
    if occurrence.kind is not Kind.LAYERS:
        return None
    assign = assignment_of(occurrence)
    if assign is None or assign.value is None or not is_kind(target_of(assign), Kind.LAYERS):
        return None
    if not m.matches(assign.value, _COLLECTION) or m.matches(assign.value, EMPTY | NONE):
        return None
    target = last_name(target_of(assign))
    return Finding(assign, name=target, value=source_of(assign.value), offset=layer_offset(assign.value))


@rule("layers_loop")
def _layers_loop(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if occurrence.kind is Kind.LAYERS and isinstance(parent, cst.For | cst.CompFor):
        return Finding(parent) if parent.iter is occurrence.reference else None
    return None


@rule("layers_empty_test")
def _layers_empty_test(occurrence: Occurrence) -> Finding | None:
    """Truth, comparison with None and `bool(...)` of the list all ask whether anything is to be captured."""
    if occurrence.kind is not Kind.LAYERS:
        return None
    if m.matches(occurrence.parent, m.Arg()):
        call = occurrence.fragment.parent_of(occurrence.parent)
        return Finding(call) if m.matches(call, m.Call(func=m.Name("bool"), args=[m.Arg()])) else None
    if isinstance(occurrence.parent, cst.Comparison):
        target = m.ComparisonTarget(operator=m.Is() | m.IsNot(), comparator=NONE)
        compared = occurrence.parent.left is occurrence.reference
        matched = compared and m.matches(occurrence.parent, m.Comparison(comparisons=[target]))
        return Finding(occurrence.parent) if matched else None
    return Finding(occurrence.reference) if in_condition(occurrence) else None


@rule("layers_count")
def _layers_count(occurrence: Occurrence) -> Finding | None:
    call = enclosing_call(occurrence, lambda call: is_len_of(call, Kind.LAYERS))
    return Finding(call) if call is not None and occurrence.kind is Kind.LAYERS else None


@rule("layers_read")
def _layers_read(occurrence: Occurrence) -> Finding | None:
    """A local name for the list, with or without a stand-in for None, or a part of it."""
    value = occurrence.reference
    if occurrence.kind is not Kind.LAYERS:
        return None
    holder = occurrence.parent
    if isinstance(holder, cst.BooleanOperation) and holder.left is value and m.matches(holder.right, EMPTY):
        value, holder = holder, occurrence.fragment.parent_of(holder)
    elif isinstance(holder, cst.Arg) and m.matches(occurrence.fragment.parent_of(holder), COPY):
        value = occurrence.fragment.parent_of(holder)
        holder = occurrence.fragment.parent_of(value)
    if isinstance(holder, cst.Assign) and holder.value is value and not is_kind(target_of(holder), Kind.LAYERS):
        return Finding(holder, to=source_of(target_of(holder)))
    if isinstance(holder, cst.Return):
        return Finding(holder)
    return None


@rule("layers_pass")
def _layers_pass(occurrence: Occurrence) -> Finding | None:
    argument, call = call_argument(occurrence)
    if argument is None or call is None or occurrence.kind is not Kind.LAYERS:
        return None
    direct = argument.value is occurrence.reference or argument.keyword is occurrence.node
    builtin = m.Name("len") | m.Name("bool") | m.Name("getattr") | m.Name("hasattr") | m.Name("setattr")
    if not direct or m.matches(call.func, builtin) or m.matches(call, COPY):
        return None
    return Finding(argument, to=source_of(call.func))


@rule("layer_mark")
def _layer_mark(occurrence: Occurrence) -> Finding | None:
    call = _argument_of_setattr(occurrence)
    if call is not None and occurrence.kind in (Kind.MARK, Kind.LAYERS):
        return Finding(call, name=_mark_of(call), value=source_of(call.args[2].value))
    assign = assignment_of(occurrence)
    if assign is None or assign.value is None or not is_kind(target_of(assign), Kind.MARK):
        return None
    shape = BOOL | m.Comparison(comparisons=[m.ComparisonTarget(operator=m.In())])
    if not m.matches(assign.value, shape):
        return None
    return Finding(assign, name=last_name(target_of(assign)), value=source_of(assign.value))


def _argument_of_setattr(occurrence: Occurrence) -> cst.Call | None:
    """Return `setattr(layer, "<mark>", ...)` around the name."""
    call = enclosing_call(occurrence, lambda call: m.matches(call, m.Call(func=m.Name("setattr"), args=[m.Arg()] * 3)))
    return call if call is not None and _mark_of(call) is not None else None


def _mark_of(call: cst.Call) -> str | None:
    name = call.args[1].value
    value = str(name.raw_value) if isinstance(name, cst.SimpleString) else ""
    return value if kind_of(value) is Kind.MARK else None


@rule("setting_set")
def _setting_set(occurrence: Occurrence) -> Finding | None:
    return _setting(occurrence, in_setter=True)


@rule("setting_init")
def _setting_init(occurrence: Occurrence) -> Finding | None:
    return _setting(occurrence, in_setter=False)


def _setting(occurrence: Occurrence, *, in_setter: bool) -> Finding | None:
    value = assigned_value(occurrence)
    inside = kind_of(function_name(occurrence) or "") is Kind.SETTER
    if occurrence.kind is not Kind.SETTING or value is None or inside is not in_setter:
        return None
    return Finding(occurrence.parent, value=source_of(value))


@rule("setting_use")
def _setting_use(occurrence: Occurrence) -> Finding | None:
    if occurrence.kind is not Kind.SETTING:
        return None
    call = occurrence.fragment.parent_of(occurrence.parent)
    if isinstance(occurrence.parent, cst.Arg) and m.matches(call, m.Call(func=m.Name("hasattr"))):
        return Finding(call)
    copied = isinstance(occurrence.parent, cst.Assign) and occurrence.parent.value is occurrence.reference
    return Finding(occurrence.reference) if copied or in_condition(occurrence) else None
