"""Roles of what switches capture on: setters, flags, the ids of a draft model, and who calls them."""

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.sites.shapes import (
    COPY,
    assigned_value,
    assignment_of,
    call_argument,
    choices_of,
    enclosing_call,
    function_name,
    in_condition,
    is_conditional,
    is_kind,
    layer_offset,
    target_of,
)
from auxtap.tracer.sites.site_registry import BOOL, NONE, Finding, rule
from auxtap.tracer.source.fragments import last_name, source_of
from auxtap.tracer.source.names import Kind
from auxtap.tracer.source.occurrences import Occurrence

_READ = m.Call(func=m.Attribute(attr=m.Name("get"))) | m.Call(func=m.Name("getattr"))
_PASSED = (Kind.FLAG, Kind.LAYER_IDS)


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


@rule("setter_test")
def _setter_test(occurrence: Occurrence) -> Finding | None:
    call = occurrence.fragment.parent_of(occurrence.parent)
    if occurrence.kind is Kind.SETTER and isinstance(call, cst.Call) and m.matches(call.func, m.Name("hasattr")):
        return Finding(call, to=source_of(call.args[0].value))
    return None


@rule("setter_read")
def _setter_read(occurrence: Occurrence) -> Finding | None:
    """The bound method is taken from an inner model, to be called or passed on as it is."""
    value = m.matches(occurrence.reference, m.Attribute() | m.Call(func=m.Name("getattr")))
    kept = isinstance(occurrence.parent, cst.Assign | cst.AnnAssign | cst.Return)
    if occurrence.kind is Kind.SETTER and value and kept:
        return Finding(occurrence.parent, value=source_of(occurrence.reference))
    return None


@rule("configure")
def _configure(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if occurrence.kind is Kind.CONFIGURE and isinstance(parent, cst.FunctionDef) and parent.name is occurrence.node:
        return Finding(parent)
    return None


@rule("configure_call")
def _configure_call(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if occurrence.kind is Kind.CONFIGURE and isinstance(parent, cst.Call) and parent.func is occurrence.reference:
        return Finding(parent)
    return None


@rule("ids_default")
def _ids_default(occurrence: Occurrence) -> Finding | None:
    value = assigned_value(occurrence)
    if value is not None and occurrence.kind is Kind.LAYER_IDS and m.matches(value, NONE):
        return Finding(occurrence.parent, value="None")
    return None


@rule("ids_field")
def _ids_field(occurrence: Occurrence) -> Finding | None:
    """An argument of the server or a field of its settings: annotated in a class body."""
    parent = occurrence.parent
    if occurrence.kind is Kind.LAYER_IDS and occurrence.function is None and isinstance(parent, cst.AnnAssign):
        return Finding(parent) if parent.target is occurrence.reference else None
    return None


@rule("ids_read")
def _ids_read(occurrence: Occurrence) -> Finding | None:
    if occurrence.kind is not Kind.LAYER_IDS:
        return None
    value = assigned_value(occurrence)
    if value is not None and m.matches(value, m.Subscript() | _READ):
        return Finding(occurrence.parent, value=source_of(value))
    parent = occurrence.parent
    own = assignment_of(occurrence)
    if own is not None and m.matches(occurrence.reference, m.Call()) and is_kind(target_of(own), Kind.LAYER_IDS):
        return Finding(own.targets[0] if isinstance(own, cst.Assign) else own, value=source_of(occurrence.reference))
    if isinstance(parent, cst.Assign) and parent.value is occurrence.reference:
        return Finding(parent, to=source_of(target_of(parent)))
    return None


@rule("ids_set")
def _ids_set(occurrence: Occurrence) -> Finding | None:
    """The ids come from another argument or list, perhaps only when there is one."""
    value = assigned_value(occurrence)
    if value is None or occurrence.kind is not Kind.LAYER_IDS:
        return None
    shape = m.Name() | m.Attribute() | COPY | m.ListComp() | m.List()
    if all(m.matches(choice, shape | NONE) for choice in choices_of(value)):
        return Finding(occurrence.parent, value=source_of(value), offset=layer_offset(choices_of(value)[0]))
    return None


@rule("ids_test")
def _ids_test(occurrence: Occurrence) -> Finding | None:
    if occurrence.kind is Kind.LAYER_IDS and in_condition(occurrence):
        return Finding(occurrence.reference)
    return None


@rule("flag_init")
def _flag_init(occurrence: Occurrence) -> Finding | None:
    if occurrence.kind is not Kind.FLAG:
        return None
    parent = occurrence.parent
    if occurrence.function is None and isinstance(parent, cst.AnnAssign) and parent.target is occurrence.reference:
        return Finding(parent, value=None if parent.value is None else source_of(parent.value))
    value = assigned_value(occurrence)
    if value is None or not m.matches(value, BOOL):
        return None
    in_init = function_name(occurrence) == "__init__" and not is_conditional(occurrence)
    in_class_body = occurrence.function is None
    return Finding(parent, value=source_of(value)) if in_init or in_class_body else None


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
    if occurrence.kind is not Kind.FLAG:
        return None
    own = assignment_of(occurrence)
    if own is None or own.value is None or not m.matches(own.value, _READ):
        return None
    direct = occurrence.reference is own.value or is_kind(target_of(own), Kind.FLAG)
    return (
        Finding(own.targets[0] if isinstance(own, cst.Assign) else own, value=source_of(own.value)) if direct else None
    )


@rule("flag_copy")
def _flag_copy(occurrence: Occurrence) -> Finding | None:
    own = assignment_of(occurrence)
    if own is None or own.value is None or occurrence.kind is not Kind.FLAG:
        return None
    named = is_kind(own.value, Kind.FLAG) or is_kind(target_of(own), Kind.FLAG)
    simple = m.matches(own.value, m.Name() | m.Attribute())
    return Finding(own, value=source_of(own.value), to=source_of(target_of(own))) if named and simple else None


@rule("flag_property")
def _flag_property(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if occurrence.kind is not Kind.FLAG or not isinstance(parent, cst.FunctionDef):
        return None
    known = m.Decorator(decorator=m.Name("property"))
    is_property = parent.name is occurrence.node and any(m.matches(item, known) for item in parent.decorators)
    return Finding(parent) if is_property else None


@rule("pass_in")
def _pass_in(occurrence: Occurrence) -> Finding | None:
    """A flag or the ids are given to a function under their own name."""
    argument, call = call_argument(occurrence)
    if argument is None or call is None or occurrence.kind not in _PASSED:
        return None
    direct = argument.value is occurrence.reference or argument.keyword is occurrence.node
    return Finding(argument, name=_argument_name(argument), to=source_of(call.func)) if direct else None


def _argument_name(argument: cst.Arg) -> str | None:
    return last_name(argument.value if argument.keyword is None else argument.keyword)


@rule("flag_test")
def _flag_test(occurrence: Occurrence) -> Finding | None:
    if occurrence.kind is Kind.FLAG and in_condition(occurrence):
        return Finding(occurrence.reference)
    return None
