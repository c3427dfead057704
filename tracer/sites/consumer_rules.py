"""Roles of the captured states on their way out: returned, unpacked, handed over, picked from, joined, stored."""

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.sites.shapes import (
    assigned_to,
    assigned_value,
    assignment_of,
    call_argument,
    choices_of,
    chooser_of,
    enclosing_call,
    in_condition,
    is_family,
    is_kind,
    is_len_of,
    is_logits_processor,
    target_of,
)
from auxtap.tracer.sites.site_registry import NONE, STATES_OR_STATE, Finding, rule
from auxtap.tracer.source.fragments import last_name, source_of
from auxtap.tracer.source.names import GATE_NAME, Kind
from auxtap.tracer.source.occurrences import Occurrence

_ALLOCATION = m.Call(func=m.Attribute(attr=m.Name("zeros") | m.Name("empty") | m.Name("new_empty")))
_FORM_TEST = m.Call(func=m.Name("isinstance") | m.Name("getattr") | m.Attribute(attr=m.Name("is_tensor")))
_AGAINST_ZERO = m.Comparison(comparisons=[m.ComparisonTarget(comparator=m.Integer("0"))])
_JOIN = m.Attribute(attr=m.Name("cat") | m.Name("concat") | m.Name("stack"))


@rule("hand_over")
def _hand_over(occurrence: Occurrence) -> Finding | None:
    argument, call = call_argument(occurrence)
    if argument is None or call is None or not is_logits_processor(call):
        return None
    direct = occurrence.node is argument.keyword or occurrence.reference is argument.value
    return Finding(argument, to=source_of(call.func)) if direct and occurrence.kind in STATES_OR_STATE else None


@rule("pass_on")
def _pass_on(occurrence: Occurrence) -> Finding | None:
    argument, call = call_argument(occurrence)
    if argument is None or call is None or argument.value is not occurrence.reference:
        return None
    method = m.Attribute(value=m.Name("self"), attr=m.Name())
    if occurrence.kind is Kind.STATES and m.matches(call.func, method):
        return Finding(argument, to=source_of(call.func))
    return None


@rule("state_field")
def _state_field(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if occurrence.kind is not Kind.STATES or occurrence.function is not None or not isinstance(parent, cst.AnnAssign):
        return None
    empty = parent.value is None or m.matches(parent.value, NONE)
    return Finding(parent) if parent.target is occurrence.reference and empty else None


@rule("buffer_init")
def _buffer_init(occurrence: Occurrence) -> Finding | None:
    value = assigned_value(occurrence)
    if occurrence.kind is not Kind.STATES or value is None:
        return None
    choices = choices_of(value)
    allocates = any(m.matches(choice, _ALLOCATION) for choice in choices)
    known = all(m.matches(choice, _ALLOCATION | NONE) for choice in choices)
    return Finding(occurrence.parent, value=source_of(value)) if allocates and known else None


@rule("default")
def _default(occurrence: Occurrence) -> Finding | None:
    value = assigned_value(occurrence)
    if value is not None and occurrence.kind in STATES_OR_STATE and m.matches(value, NONE):
        return Finding(occurrence.parent, value="None")
    return None


@rule("stage_carry")
def _stage_carry(occurrence: Occurrence) -> Finding | None:
    """The states of this stage go into what the next stage gets."""
    assign = assigned_to(occurrence)
    if assign is None or occurrence.kind is not Kind.STATES or not m.matches(target_of(assign), m.Subscript()):
        return None
    return Finding(assign, to=source_of(target_of(assign)))


@rule("pack_function")
def _pack_function(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if occurrence.kind is Kind.PACK and isinstance(parent, cst.FunctionDef) and parent.name is occurrence.node:
        return Finding(parent)
    return None


@rule("join")
def _join(occurrence: Occurrence) -> Finding | None:
    packing = enclosing_call(occurrence, lambda call: is_kind(call.func, Kind.PACK))
    call = packing or enclosing_call(occurrence, lambda call: m.matches(call.func, _JOIN))
    value = assigned_value(occurrence)
    if (
        call is None
        and isinstance(value, cst.Call)
        and (m.matches(value.func, _JOIN) or is_kind(value.func, Kind.PACK))
    ):
        call = value
    if call is None or not call.args:
        return None
    joined = packing is not None or is_kind(call.args[0].value, Kind.STATES)
    known = joined and occurrence.kind in (Kind.STATES, Kind.PACK)
    return Finding(call, value=source_of(call)) if known else None


@rule("unpack")
def _unpack(occurrence: Occurrence) -> Finding | None:
    target = occurrence.fragment.parent_of(occurrence.parent)
    if occurrence.kind is not Kind.STATES or not isinstance(occurrence.parent, cst.Element):
        return None
    holder = occurrence.fragment.parent_of(target)
    return Finding(target) if isinstance(target, cst.Tuple) and isinstance(holder, cst.AssignTarget) else None


@rule("return_pair")
def _return_pair(occurrence: Occurrence) -> Finding | None:
    """The states stand in a returned tuple: as they are, chosen against None, or made final there."""
    if occurrence.kind is not Kind.STATES:
        return None
    node = occurrence.reference
    for ancestor in occurrence.ancestors():
        if isinstance(ancestor, cst.Tuple):
            return Finding(ancestor) if _is_returned(occurrence, ancestor) else None
        choice = isinstance(ancestor, cst.IfExp) and ancestor.test is not node
        final = m.matches(ancestor, m.Attribute(attr=m.Name("finalize")) | m.Call(args=[]) | m.Element())
        if not choice and not final:
            return None
        node = ancestor
    return None


@rule("pair_value")
def _pair_value(occurrence: Occurrence) -> Finding | None:
    pair = occurrence.fragment.parent_of(occurrence.parent)
    if occurrence.kind is not Kind.STATES or not isinstance(occurrence.parent, cst.Element):
        return None
    holder = occurrence.fragment.parent_of(pair)
    kept = isinstance(pair, cst.Tuple) and isinstance(holder, cst.Assign) and holder.value is pair
    return Finding(pair, to=source_of(target_of(holder))) if kept and isinstance(holder, cst.Assign) else None


def _is_returned(occurrence: Occurrence, pair: cst.Tuple) -> bool:
    node: cst.CSTNode = pair
    for ancestor in occurrence.fragment.ancestors_of(pair):
        if not isinstance(ancestor, cst.IfExp) or ancestor.test is node:
            return isinstance(ancestor, cst.Return)
        node = ancestor
    return False


@rule("return_states")
def _return_states(occurrence: Occurrence) -> Finding | None:
    chosen, holder = chooser_of(occurrence)
    if occurrence.kind is Kind.STATES and isinstance(holder, cst.Return) and holder.value is chosen:
        return Finding(holder)
    return None


@rule("empty_test")
def _empty_test(occurrence: Occurrence) -> Finding | None:
    if occurrence.kind is not Kind.STATES:
        return None
    length = enclosing_call(occurrence, lambda call: is_len_of(call, Kind.STATES))
    if length is not None and length.args[0].value is occurrence.reference:
        comparison = occurrence.fragment.parent_of(length)
        return Finding(comparison) if m.matches(comparison, _AGAINST_ZERO) else None
    if isinstance(occurrence.parent, cst.Comparison | cst.ComparisonTarget) or not in_condition(occurrence):
        return None
    inverted = m.matches(occurrence.parent, m.UnaryOperation(operator=m.Not()))
    return Finding(occurrence.parent if inverted else occurrence.reference)


@rule("none_test")
def _none_test(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if not isinstance(parent, cst.Comparison) or parent.left is not occurrence.reference:
        return None
    target = m.ComparisonTarget(operator=m.Is() | m.IsNot(), comparator=NONE)
    matched = len(parent.comparisons) == 1 and m.matches(parent.comparisons[0], target)
    return Finding(parent) if matched and occurrence.kind in STATES_OR_STATE else None


@rule("form_test")
def _form_test(occurrence: Occurrence) -> Finding | None:
    """One packed tensor, a list of tensors, or a list that copies what it gets?"""
    call = occurrence.fragment.parent_of(occurrence.parent)
    first = isinstance(call, cst.Call) and bool(call.args) and call.args[0] is occurrence.parent
    if occurrence.kind is Kind.STATES and first and m.matches(call, _FORM_TEST):
        return Finding(call, value=source_of(call))
    return None


@rule("count")
def _count(occurrence: Occurrence) -> Finding | None:
    """How many states there are, from the length of the list or the width of the packed tensor."""
    if occurrence.kind is not Kind.STATES:
        return None
    length = occurrence.fragment.parent_of(occurrence.parent)
    if is_len_of(length, Kind.STATES):
        compared = isinstance(occurrence.fragment.parent_of(length), cst.Comparison)
        return Finding(length, value=source_of(length)) if compared or assigned_to(occurrence) is not None else None
    if assigned_to(occurrence) is None:
        return None
    return Finding(occurrence.parent) if m.matches(occurrence.parent, m.Attribute(attr=m.Name("shape"))) else None


@rule("prune")
def _prune(occurrence: Occurrence) -> Finding | None:
    parent = occurrence.parent
    if occurrence.kind is not Kind.STATES:
        return None
    if isinstance(parent, cst.CompFor) and parent.iter is occurrence.reference:
        comprehension = occurrence.fragment.parent_of(parent)
        return Finding(comprehension, value=source_of(comprehension)) if _picks(comprehension) else None
    if isinstance(parent, cst.Subscript) and parent.value is occurrence.reference:
        return Finding(parent, value=source_of(parent))
    value = assigned_value(occurrence)
    if isinstance(value, cst.Subscript) and is_kind(value.value, Kind.STATES):
        return Finding(value, value=source_of(value))
    if isinstance(value, cst.ListComp) and is_kind(value.for_in.iter, Kind.STATES):
        return Finding(value, value=source_of(value)) if _picks(value) else None
    chosen, holder = chooser_of(occurrence)
    if isinstance(chosen, cst.IfExp) and isinstance(holder, cst.Assign) and any(map(_picks, choices_of(chosen))):
        return Finding(occurrence.reference, value=source_of(occurrence.reference))
    enumerated = occurrence.fragment.parent_of(parent)
    loop = occurrence.fragment.parent_of(enumerated)
    if isinstance(loop, cst.For) and loop.iter is enumerated and m.matches(enumerated, m.Call(args=[m.Arg()])):
        return Finding(enumerated)
    return None


def _picks(node: cst.CSTNode) -> bool:
    """Tell whether a comprehension takes the states, or rows of them, and nothing that is worked out of them."""
    if not isinstance(node, cst.ListComp | cst.GeneratorExp) or not isinstance(node.for_in.target, cst.Name):
        return False
    state = m.Name(node.for_in.target.value)
    return m.matches(node.elt, state | m.Subscript(value=state) | m.List(elements=[]))


@rule("store")
def _store(occurrence: Occurrence) -> Finding | None:
    """The states go on under another name, as they are or where they need no picking."""
    pattern: m.Assign = m.Assign(targets=[m.AssignTarget(target=m.Name())])
    chosen, holder = chooser_of(occurrence)
    if occurrence.kind is not Kind.STATES or not isinstance(holder, cst.Assign) or not m.matches(holder, pattern):
        return None
    target = holder.targets[0].target
    if holder.value is chosen and not is_family(target):
        return Finding(occurrence.reference if chosen is not occurrence.reference else holder, to=source_of(target))
    return None


@rule("expected_init")
def _expected_init(occurrence: Occurrence) -> Finding | None:
    value = assigned_value(occurrence)
    if occurrence.kind is Kind.EXPECTED and value is not None:
        return Finding(occurrence.parent, value=source_of(value))
    return None


@rule("expected_test")
def _expected_test(occurrence: Occurrence) -> Finding | None:
    if occurrence.kind is Kind.EXPECTED and in_condition(occurrence):
        return Finding(occurrence.reference)
    return None


@rule("expected_read")
def _expected_read(occurrence: Occurrence) -> Finding | None:
    own = assignment_of(occurrence)
    if occurrence.kind is Kind.EXPECTED and own is not None and own.value is occurrence.reference:
        return Finding(own, to=last_name(target_of(own)))
    return None


@rule("tapped")
def _tapped(occurrence: Occurrence) -> Finding | None:
    """A line that auxtap's own patch inserted."""
    own = m.Call(func=m.Attribute(value=m.Name(GATE_NAME)))
    call = enclosing_call(occurrence, lambda item: m.matches(item, own))
    return None if call is None else Finding(call, to=source_of(call.func))
