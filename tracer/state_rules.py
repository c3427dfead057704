"""Roles of the captured states themselves, from the accumulator to the consumer."""

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.fragments import last_name, source_of
from auxtap.tracer.names import Kind, kind_of
from auxtap.tracer.occurrences import Occurrence
from auxtap.tracer.shapes import (
    assigned_value,
    call_argument,
    enclosing_call,
    is_family,
    is_kind,
    is_tested,
)
from auxtap.tracer.site_registry import EMPTY_LIST, NONE, STATES_OR_STATE, Finding, rule


@rule("parameter")
def _parameter(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if isinstance(parent, cst.Param) and parent.name is occurrence.node and occurrence.kind is not Kind.SETTER:
        return Finding(parent)
    return None


@rule("collector_hand_in")
def _collector_hand_in(occurrence: Occurrence) -> Finding | None:
    argument, call = call_argument(occurrence)
    if argument is None or call is None or argument.keyword is None or last_name(call.func) == "logits_processor":
        return None
    if kind_of(argument.keyword.value) is not Kind.STATES or occurrence.kind not in STATES_OR_STATE:
        return None
    return Finding(argument, name=argument.keyword.value, value=source_of(argument.value), to=source_of(call.func))


@rule("hand_over")
def _hand_over(occurrence: Occurrence) -> Finding | None:
    argument, call = call_argument(occurrence)
    if argument is None or call is None or last_name(call.func) != "logits_processor":
        return None
    direct = occurrence.node is argument.keyword or occurrence.reference is argument.value
    return Finding(argument, to=source_of(call.func)) if direct and occurrence.kind in STATES_OR_STATE else None


@rule("append")
def _append(occurrence: Occurrence) -> Finding | None:
    call = enclosing_call(
        occurrence,
        lambda call: (
            m.matches(call.func, m.Attribute(attr=m.Name("append")))
            and isinstance(call.func, cst.Attribute)
            and is_kind(call.func.value, Kind.STATES)
        ),
    )
    if call is None or len(call.args) != 1 or not isinstance(call.func, cst.Attribute):
        return None
    return Finding(call, name=last_name(call.func.value), value=source_of(call.args[0].value))


@rule("pass_on")
def _pass_on(occurrence: Occurrence) -> Finding | None:
    argument, call = call_argument(occurrence)
    if argument is None or call is None or argument.value is not occurrence.reference:
        return None
    method = m.Attribute(value=m.Name("self"), attr=m.Name())
    if occurrence.kind is Kind.STATES and m.matches(call.func, method):
        return Finding(argument, to=source_of(call.func))
    return None


@rule("accumulator_init")
def _accumulator_init(occurrence: Occurrence) -> Finding | None:
    value = assigned_value(occurrence)
    local = isinstance(occurrence.reference, cst.Name)
    if value is not None and local and occurrence.kind is Kind.STATES and m.matches(value, EMPTY_LIST):
        return Finding(occurrence.parent)
    return None


@rule("default")
def _default(occurrence: Occurrence) -> Finding | None:
    value = assigned_value(occurrence)
    if value is not None and occurrence.kind in STATES_OR_STATE and m.matches(value, NONE):
        return Finding(occurrence.parent, value="None")
    return None


@rule("join")
def _join(occurrence: Occurrence) -> Finding | None:
    call = enclosing_call(
        occurrence,
        lambda call: m.matches(call.func, m.Attribute(attr=m.Name("cat") | m.Name("concat") | m.Name("stack"))),
    )
    value = assigned_value(occurrence)
    if call is None and isinstance(value, cst.Call):
        call = value
    if call is None or not call.args or not is_kind(call.args[0].value, Kind.STATES):
        return None
    return Finding(call, value=source_of(call)) if occurrence.kind is Kind.STATES else None


@rule("gather")
def _gather(occurrence: Occurrence) -> Finding | None:
    value = assigned_value(occurrence)
    if occurrence.kind is not Kind.STATE or not isinstance(value, cst.Call):
        return None
    callee = last_name(value.func)
    return Finding(occurrence.parent) if callee and "gather" in callee.split("_") else None


@rule("unpack")
def _unpack(occurrence: Occurrence) -> Finding | None:
    target = occurrence.fragment.parent_of(occurrence.parent)
    if occurrence.kind is not Kind.STATES or not isinstance(occurrence.parent, cst.Element):
        return None
    holder = occurrence.fragment.parent_of(target)
    return Finding(target) if isinstance(target, cst.Tuple) and isinstance(holder, cst.AssignTarget) else None


@rule("return_pair")
def _return_pair(occurrence: Occurrence) -> Finding | None:
    pair = occurrence.fragment.parent_of(occurrence.parent)
    if occurrence.kind is not Kind.STATES or not isinstance(pair, cst.Tuple):
        return None
    return Finding(pair) if isinstance(occurrence.fragment.parent_of(pair), cst.Return) else None


@rule("empty_test")
def _empty_test(occurrence: Occurrence) -> Finding | None:
    if occurrence.kind is not Kind.STATES:
        return None
    length = enclosing_call(occurrence, lambda call: m.matches(call, m.Call(func=m.Name("len"), args=[m.Arg()])))
    if length is not None and length.args[0].value is occurrence.reference:
        comparison = occurrence.fragment.parent_of(length)
        return Finding(comparison) if isinstance(comparison, cst.Comparison) else None
    inverted = m.matches(occurrence.parent, m.UnaryOperation(operator=m.Not()))
    return Finding(occurrence.parent) if inverted and is_tested(occurrence) else None


@rule("none_test")
def _none_test(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if not isinstance(parent, cst.Comparison) or parent.left is not occurrence.reference:
        return None
    target = m.ComparisonTarget(operator=m.Is() | m.IsNot(), comparator=NONE)
    matched = len(parent.comparisons) == 1 and m.matches(parent.comparisons[0], target)
    return Finding(parent) if matched and occurrence.kind in STATES_OR_STATE else None


@rule("prune")
def _prune(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if occurrence.kind is Kind.STATES and isinstance(parent, cst.CompFor) and parent.iter is occurrence.reference:
        comprehension = occurrence.fragment.parent_of(parent)
        return Finding(comprehension, value=source_of(comprehension))
    return None


@rule("store")
def _store(occurrence: Occurrence) -> Finding | None:
    pattern: m.Assign = m.Assign(targets=[m.AssignTarget(target=m.Name())])
    parent = occurrence.parent
    if occurrence.kind is not Kind.STATES or not isinstance(parent, cst.Assign) or not m.matches(parent, pattern):
        return None
    target = parent.targets[0].target
    if parent.value is occurrence.reference and not is_family(target):
        return Finding(parent, to=source_of(target))
    return None
