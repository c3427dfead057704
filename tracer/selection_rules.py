"""Roles of what selects layers and switches capture on: setters, layer lists, flags and marks."""

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.fragments import last_name, source_of
from auxtap.tracer.names import Kind
from auxtap.tracer.occurrences import Occurrence
from auxtap.tracer.shapes import (
    assigned_value,
    enclosing_call,
    function_name,
    is_conditional,
    is_kind,
    is_tested,
    layer_offset,
)
from auxtap.tracer.site_registry import BOOL, EMPTY_LIST, NONE, Finding, rule


@rule("setter")
def _setter(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if occurrence.kind is Kind.SETTER and isinstance(parent, cst.FunctionDef) and parent.name is occurrence.node:
        return Finding(parent)
    return None


@rule("setter_call")
def _setter_call(occurrence: Occurrence) -> Finding | None:
    call = enclosing_call(occurrence, lambda call: is_kind(call.func, Kind.SETTER))
    if call is None or not isinstance(call.func, cst.Attribute):
        return None
    value = call.args[0].value if call.args else None
    return Finding(
        call,
        name=call.func.attr.value,
        value=None if value is None else source_of(value),
        to=source_of(call.func.value),
        offset=None if value is None else layer_offset(value),
    )


@rule("layer_test")
def _layer_test(occurrence: Occurrence) -> Finding | None:
    if occurrence.kind is Kind.MARK and occurrence.is_string:
        call = occurrence.fragment.parent_of(occurrence.parent)
        return Finding(call) if m.matches(call, m.Call(func=m.Name("getattr"))) else None
    target = occurrence.parent
    if occurrence.kind is Kind.LAYERS and m.matches(target, m.ComparisonTarget(operator=m.In())):
        return Finding(target)
    return None


@rule("layers_init")
def _layers_init(occurrence: Occurrence) -> Finding | None:
    value = assigned_value(occurrence)
    if value is not None and occurrence.kind is Kind.LAYERS and m.matches(value, EMPTY_LIST):
        return Finding(occurrence.parent)
    return None


@rule("layers_set")
def _layers_set(occurrence: Occurrence) -> Finding | None:
    if occurrence.kind is not Kind.LAYERS:
        return None
    assign = next((item for item in (occurrence.parent, *occurrence.ancestors()) if isinstance(item, cst.Assign)), None)
    if assign is None or len(assign.targets) != 1 or not is_kind(assign.targets[0].target, Kind.LAYERS):
        return None
    offset = layer_offset(assign.value)
    shape = m.List() | m.ListComp() | m.Name() | m.Attribute()
    if not m.matches(assign.value, shape) or m.matches(assign.value, EMPTY_LIST | NONE):
        return None
    name = last_name(assign.targets[0].target)
    return Finding(assign, name=name, value=source_of(assign.value), offset=offset)


@rule("layers_loop")
def _layers_loop(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if occurrence.kind is Kind.LAYERS and isinstance(parent, cst.For) and parent.iter is occurrence.reference:
        return Finding(parent)
    return None


@rule("layer_mark")
def _layer_mark(occurrence: Occurrence) -> Finding | None:
    if occurrence.kind is not Kind.MARK:
        return None
    value = assigned_value(occurrence)
    if value is not None and m.matches(value, BOOL):
        return Finding(occurrence.parent, value=source_of(value))
    call = occurrence.fragment.parent_of(occurrence.parent)
    if isinstance(call, cst.Call) and m.matches(call, m.Call(func=m.Name("setattr"), args=[m.Arg()] * 3)):
        return Finding(call, value=source_of(call.args[2].value))
    return None


@rule("setter_test")
def _setter_test(occurrence: Occurrence) -> Finding | None:
    call = occurrence.fragment.parent_of(occurrence.parent)
    if occurrence.kind is Kind.SETTER and isinstance(call, cst.Call) and m.matches(call.func, m.Name("hasattr")):
        return Finding(call, to=source_of(call.args[0].value))
    return None


@rule("ids_default")
def _ids_default(occurrence: Occurrence) -> Finding | None:
    value = assigned_value(occurrence)
    if value is not None and occurrence.kind is Kind.LAYER_IDS and m.matches(value, NONE):
        return Finding(occurrence.parent, value="None")
    return None


@rule("ids_read")
def _ids_read(occurrence: Occurrence) -> Finding | None:
    value = assigned_value(occurrence)
    read = m.Subscript() | m.Call(func=m.Attribute(attr=m.Name("get"))) | m.Call(func=m.Name("getattr"))
    if value is not None and occurrence.kind is Kind.LAYER_IDS and m.matches(value, read):
        return Finding(occurrence.parent, value=source_of(value))
    return None


@rule("flag_init")
def _flag_init(occurrence: Occurrence) -> Finding | None:
    value = assigned_value(occurrence)
    if value is None or occurrence.kind is not Kind.FLAG or not m.matches(value, BOOL):
        return None
    in_init = function_name(occurrence) == "__init__" and not is_conditional(occurrence)
    in_class_body = occurrence.function is None
    return Finding(occurrence.parent, value=source_of(value)) if in_init or in_class_body else None


@rule("flag_set")
def _flag_set(occurrence: Occurrence) -> Finding | None:
    value = assigned_value(occurrence)
    if value is None or occurrence.kind is not Kind.FLAG or not m.matches(value, BOOL):
        return None
    if function_name(occurrence) == "__init__" and not is_conditional(occurrence):
        return None
    return Finding(occurrence.parent, value=source_of(value))


@rule("flag_read")
def _flag_read(occurrence: Occurrence) -> Finding | None:
    value = assigned_value(occurrence)
    read = m.Call(func=m.Attribute(attr=m.Name("get"))) | m.Call(func=m.Name("getattr"))
    if value is not None and occurrence.kind is Kind.FLAG and m.matches(value, read):
        return Finding(occurrence.parent, value=source_of(value))
    return None


@rule("flag_test")
def _flag_test(occurrence: Occurrence) -> Finding | None:
    if occurrence.kind is Kind.FLAG and is_tested(occurrence):
        return Finding(occurrence.reference)
    return None
