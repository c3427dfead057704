"""Read the forward that hands what was captured, and the final state, to the logits processor."""

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.reading.forwards import Forward
from auxtap.tracer.reading.mentions import bound_names, touches
from auxtap.tracer.reading.rounds import ObjectedError
from auxtap.tracer.report.readings import Objection
from auxtap.tracer.source.fragments import last_name
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.walk import find

_PROCESSOR = "logits_processor"
_STATES = "aux_hidden_states"
_SIGNS = (" / ", " * ", ".float()")
_SCALING = m.BinaryOperation(operator=m.Divide() | m.Multiply())
_CAST = m.Call(func=m.Attribute(attr=m.Name("float")), args=[])


def may_change(text: str) -> bool:
    """Tell cheaply whether a function may change the states on their way to the logits processor; never a false no."""
    return f"{_PROCESSOR}(" in text and any(sign in text for sign in (_STATES, *_SIGNS))


def read_head(forward: Forward) -> Iterator[Objection]:
    """Yield what a forward that calls the logits processor does to what was captured, or to the final state."""
    calls = [call for call in find(forward.function.body, cst.Call) if last_name(call.func) == _PROCESSOR]
    if not calls:
        return
    for call in calls:
        changed = changed_state(forward.function, call)
        if changed is not None:
            yield forward.object(changed, "the final state is scaled, or turned into another type")
    try:
        _follow_states(forward, calls)
    except ObjectedError as objected:
        yield forward.object(objected.node, objected.reason)


def _follow_states(forward: Forward, calls: list[cst.Call]) -> None:
    """Object to whatever is done to the states between unpacking them and the logits processor."""
    names = {name for name in bound_names(forward.function.body) if kind_of(name) is Kind.STATES}
    handed = [argument for call in calls for argument in call.args if m.matches(argument.value, _any_of(names))]
    known: list[cst.CSTNode] = list(handed)
    for assign in find(forward.function.body, cst.Assign):
        if len(assign.targets) == 1 and _unpacks(assign, names):
            known.append(assign.targets[0])
    for statement in forward.body:
        if touches(statement, names, but=known):
            raise ObjectedError(statement, "what is done to the captured states here is not followed")


def _any_of(names: set[str]) -> m.BaseMatcherNode:
    return m.Name(m.MatchIfTrue(lambda value: value in names))


def _unpacks(assign: cst.Assign, names: set[str]) -> bool:
    """Tell whether an assignment takes the states out of what the backbone returned, the last of it, or clears them."""
    target, value = assign.targets[0].target, assign.value
    if isinstance(target, cst.Name):
        return m.matches(value, m.Name("None"))
    whole = isinstance(value, cst.Name) or (isinstance(value, cst.Call) and not touches(value, names))
    elements = [item.value for item in target.elements] if isinstance(target, cst.Tuple) else []
    return (
        whole
        and len(elements) > 1
        and [touches(item, names) for item in elements] == [False] * (len(elements) - 1) + [True]
    )


def changed_state(function: cst.FunctionDef, call: cst.Call) -> cst.CSTNode | None:
    """Return where the state that a call of the logits processor is given was scaled, or turned into another type."""
    if len(call.args) < 2:
        return None
    state = call.args[1].value
    if _changes(state):
        return state
    if not isinstance(state, cst.Name):
        return None
    assigns = find(function.body, cst.Assign, m.Assign(targets=[m.AssignTarget(target=m.Name(state.value))]))
    return next((assign for assign in assigns if _changes(assign.value)), None)


def _changes(node: cst.BaseExpression) -> bool:
    choices = [node.body, node.orelse] if isinstance(node, cst.IfExp) else [node]
    return any(m.matches(choice, _SCALING | _CAST) for choice in choices)
