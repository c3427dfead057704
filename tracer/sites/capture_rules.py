"""Roles of the capture itself: the collector, what goes into it, and how it reaches a layer."""

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.sites.shapes import (
    assigned_to,
    assignment_of,
    call_argument,
    choices_of,
    chooser_of,
    enclosing_call,
    is_kind,
    is_logits_processor,
    target_of,
)
from auxtap.tracer.sites.site_registry import EMPTY_LIST, NONE, STATES_OR_STATE, Finding, rule
from auxtap.tracer.source.fragments import last_name, source_of
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.occurrences import Occurrence

# `.append` of a list, `.capture` and `.extend` of a collector, `.slot` of a packed one that is written in place.
_TAKES = m.Name("append") | m.Name("capture") | m.Name("extend")
_HANDED = m.Name("append") | m.Name("capture")
_WORKED_OUT = m.Name() | m.BinaryOperation(operator=m.Add()) | m.Call(func=m.Attribute(value=m.Name("self")))
_UNION = m.Subscript(value=m.Name("Union") | m.Name("Optional")) | m.BinaryOperation(operator=m.BitOr())


@rule("parameter")
def _parameter(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if isinstance(parent, cst.Param) and parent.name is occurrence.node and occurrence.kind is not Kind.SETTER:
        return Finding(parent)
    return None


@rule("collector_class")
def _collector_class(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if occurrence.kind is Kind.COLLECTOR and isinstance(parent, cst.ClassDef) and parent.name is occurrence.node:
        return Finding(parent)
    return None


@rule("collector_type")
def _collector_type(occurrence: Occurrence) -> Finding | None:
    """A class of a collector in an annotation or in the definition of a type."""
    if occurrence.kind is not Kind.COLLECTOR:
        return None
    annotation = next((item for item in occurrence.ancestors() if isinstance(item, cst.Annotation)), None)
    if annotation is not None:
        return Finding(annotation)
    assign = assignment_of(occurrence)
    if occurrence.function is None and assign is not None and assign.value is not None:
        return Finding(assign) if m.matches(assign.value, _UNION) else None
    return None


def _makes_collector(value: cst.BaseExpression) -> bool:
    """Tell whether every choice is a fresh collector or None, and one of them is a collector."""
    choices = choices_of(value)
    fresh = [choice for choice in choices if m.matches(choice, EMPTY_LIST) or _is_collector_call(choice)]
    return bool(fresh) and all(choice in fresh or m.matches(choice, NONE) for choice in choices)


def _is_collector_call(node: cst.BaseExpression) -> bool:
    if not isinstance(node, cst.Call):
        return False
    owner = node.func.value if isinstance(node.func, cst.Attribute) else None
    return is_kind(node.func, Kind.COLLECTOR) or (owner is not None and is_kind(owner, Kind.COLLECTOR))


@rule("accumulator_init")
def _accumulator_init(occurrence: Occurrence) -> Finding | None:
    assign = assignment_of(occurrence)
    if assign is None or assign.value is None or not isinstance(target_of(assign), cst.Name):
        return None
    if not is_kind(target_of(assign), Kind.STATES) or not _makes_collector(assign.value):
        return None
    value = None if m.matches(assign.value, EMPTY_LIST) else source_of(assign.value)
    return Finding(assign, name=last_name(target_of(assign)), value=value)


@rule("boundary_hand_in")
def _boundary_hand_in(occurrence: Occurrence) -> Finding | None:
    """The bound `capture` of a collector goes into a layer, whose boundary code calls it."""
    method = occurrence.parent
    if occurrence.kind is not Kind.STATES or not isinstance(method, cst.Attribute):
        return None
    holder = occurrence.fragment.parent_of(method)
    called = isinstance(holder, cst.Call) and holder.func is method
    if called or not m.matches(method.attr, _HANDED):
        return None
    argument = next((item for item in occurrence.ancestors() if isinstance(item, cst.Arg)), None)
    call = None if argument is None else occurrence.fragment.parent_of(argument)
    if isinstance(call, cst.Call):
        return Finding(method, value=source_of(method), to=source_of(call.func))
    assign = assigned_to(occurrence)
    return None if assign is None else Finding(method, value=source_of(method), to=source_of(target_of(assign)))


@rule("collector_hand_in")
def _collector_hand_in(occurrence: Occurrence) -> Finding | None:
    argument, call = call_argument(occurrence)
    if argument is None or call is None or argument.keyword is None or is_logits_processor(call):
        return None
    if kind_of(argument.keyword.value) is not Kind.STATES or occurrence.kind not in STATES_OR_STATE:
        return None
    return Finding(argument, name=argument.keyword.value, value=source_of(argument.value), to=source_of(call.func))


def _taking_call(occurrence: Occurrence, methods: m.BaseMatcherNode) -> cst.Call | None:
    return enclosing_call(
        occurrence,
        lambda call: (
            isinstance(call.func, cst.Attribute)
            and m.matches(call.func.attr, methods)
            and is_kind(call.func.value, Kind.STATES)
        ),
    )


@rule("append")
def _append(occurrence: Occurrence) -> Finding | None:
    call = _taking_call(occurrence, _TAKES)
    if call is None or not call.args or not isinstance(call.func, cst.Attribute):
        return None
    return Finding(call, name=last_name(call.func.value), value=source_of(call.args[0].value))


@rule("append_in_place")
def _append_in_place(occurrence: Occurrence) -> Finding | None:
    call = _taking_call(occurrence, m.Name("slot"))
    if call is None or not isinstance(call.func, cst.Attribute):
        return None
    writer = next((item for item in occurrence.fragment.ancestors_of(call) if isinstance(item, cst.Call)), None)
    value = None if writer is None else source_of(writer)
    return Finding(call, name=last_name(call.func.value), value=value)


@rule("gather")
def _gather(occurrence: Occurrence) -> Finding | None:
    assign = assignment_of(occurrence)
    if occurrence.kind not in STATES_OR_STATE or not isinstance(assign, cst.Assign):
        return None
    value = assign.value.elt if isinstance(assign.value, cst.ListComp) else assign.value
    target = target_of(assign)
    if not isinstance(value, cst.Call) or not (is_kind(target, Kind.STATE) or is_kind(target, Kind.STATES)):
        return None
    gathers = "gather" in (last_name(value.func) or "").split("_")
    return Finding(assign.targets[0], name=last_name(target)) if gathers else None


@rule("transform")
def _transform(occurrence: Occurrence) -> Finding | None:
    """One state is replaced by what a function makes of it, before it is kept."""
    assign = assignment_of(occurrence)
    if assign is None or occurrence.kind is not Kind.STATE or not isinstance(assign.value, cst.Call):
        return None
    given = any(is_kind(argument.value, Kind.STATE) for argument in assign.value.args)
    return Finding(assign, value=source_of(assign.value)) if given and is_kind(target_of(assign), Kind.STATE) else None


@rule("state_value")
def _state_value(occurrence: Occurrence) -> Finding | None:
    """One state is worked out before it is kept."""
    assign = assignment_of(occurrence)
    if assign is None or assign.value is None or not is_kind(target_of(assign), Kind.STATE):
        return None
    known = all(m.matches(choice, _WORKED_OUT) for choice in choices_of(assign.value))
    return Finding(assign, value=source_of(assign.value)) if known and occurrence.kind is Kind.STATE else None


@rule("return_state")
def _return_state(occurrence: Occurrence) -> Finding | None:
    chosen, holder = chooser_of(occurrence)
    if occurrence.kind is Kind.STATE and isinstance(holder, cst.Return) and holder.value is chosen:
        return Finding(holder)
    return None
