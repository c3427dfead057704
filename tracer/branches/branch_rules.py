"""Roles of branches on the stage: each rule looks at what the branch does."""

from collections.abc import Iterable

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.branches.stage_uses import StageUse, names_within, placed_attribute, rule
from auxtap.tracer.source.bodies import (
    assign_targets,
    assigned_locals,
    called_names,
    find_return,
    is_only_return,
)
from auxtap.tracer.source.fragments import last_name
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.walk import find

_TRANSPORT_WORDS = frozenset({"send", "recv", "isend", "irecv", "broadcast", "comm"})
_PLACEHOLDER = m.Call(func=m.Name("PPMissingLayer"))
_BOOL_RETURN = m.SimpleStatementLine(body=[m.Return(value=m.Name("True") | m.Name("False"))])
_NONE = m.Name("None")
_WEIGHT = m.Attribute(attr=m.Name("weight"))
_LISTING = m.Name("append") | m.Name("extend") | m.Name("add") | m.Name("update")


@rule("definition")
def _definition(use: StageUse) -> bool:
    statement = use.statement
    return isinstance(statement, cst.FunctionDef) and statement.name is use.occurrence.node


@rule("single_stage_assert")
def _single_stage_assert(use: StageUse) -> bool:
    return isinstance(use.statement, cst.Assert) and not use.negated


@rule("other_stage_assert")
def _other_stage_assert(use: StageUse) -> bool:
    return isinstance(use.statement, cst.Assert) and use.negated


@rule("stage_value")
def _stage_value(use: StageUse) -> bool:
    kept = cst.Assign | cst.AssignTarget | cst.AnnAssign | cst.Arg | cst.Return | cst.Param
    return isinstance(use.statement, kept)


@rule("layout_assert")
def _layout_assert(use: StageUse) -> bool:
    checks = m.SimpleStatementLine(body=[m.Assert()])
    return bool(use.body) and all(m.matches(node, checks) for node in use.body or ())


@rule("input_check")
def _input_check(use: StageUse) -> bool:
    refusal = m.SimpleStatementLine(body=[m.Raise()])
    return use.body is not None and all(m.matches(node, refusal) for node in use.body)


@rule("selection_gate")
def _selection_gate(use: StageUse) -> bool:
    in_setter = kind_of(use.function) is Kind.SETTER
    return in_setter and use.is_last and isinstance(use.statement, cst.If)


@rule("capture_gate")
def _capture_gate(use: StageUse) -> bool:
    """Only on this stage something joins the captured states, be it a state or those of an earlier stage."""
    if not isinstance(use.statement, cst.If) or use.orelse is not None:
        return False
    taking = m.Call(func=m.Attribute(attr=m.Name("append") | m.Name("capture")))
    calls = (call for node in use.body or () for call in find(node, cst.Call, taking))
    owners = (last_name(call.func.value) for call in calls if isinstance(call.func, cst.Attribute))
    return any(kind_of(owner or "") is Kind.STATES for owner in owners)


@rule("logits_gate")
def _logits_gate(use: StageUse) -> bool:
    if use.body is None or not use.is_last:
        return False
    if not use.negated:
        return "logits_processor" in called_names(use.body)
    # Written the other way round: what the backbone returned is returned as it is, before the logits processor.
    function = use.occurrence.function
    returned = find_return(use.body)
    return isinstance(returned, cst.Name) and function is not None and "logits_processor" in called_names([function])


@rule("runner_gate")
def _runner_gate(use: StageUse) -> bool:
    if use.body is None or use.orelse is None or not use.is_last:
        return False
    forwards = {"forward", "forward_batch_generation"}
    return bool(forwards & called_names(use.body)) and bool(forwards & called_names(use.orelse))


@rule("runner_result")
def _runner_result(use: StageUse) -> bool:
    """Logits and tokens on the last stage, proxy tensors on the others: fields of what the worker returns."""
    if not isinstance(use.statement, cst.IfExp) or not use.is_last:
        return False
    absent = any(m.matches(node, _NONE) for node in use.arms)
    words = {word for name in names_within(use.arms) for word in name.split("_")}
    return absent and bool({"logits", "token", "proxy"} & words)


@rule("weight_access")
def _weight_access(use: StageUse) -> bool:
    """A getter or setter of embedding and head, which not every stage has."""
    if use.function == "__init__" or "weight" in use.function.split("_") or use.function == "load_weights":
        return False
    if isinstance(use.statement, cst.IfExp):
        arms = use.arms
        return any(m.matches(node, _WEIGHT) for node in arms) and any(m.matches(node, _NONE) for node in arms)
    deleted = any(True for node in use.body or () for _ in find(node, cst.Del, m.Del(target=_WEIGHT)))
    return isinstance(use.statement, cst.If) and deleted


@rule("weight_skip")
def _weight_skip(use: StageUse) -> bool:
    skip = m.SimpleStatementLine(body=[m.Continue()])
    if "weight" in use.function.split("_"):
        skip = m.SimpleStatementLine(body=[m.Continue() | m.Return(value=m.Name("True"))])
    return use.negated and len(use.body or ()) == 1 and m.matches((use.body or ())[0], skip)


@rule("weight_expected")
def _weight_expected(use: StageUse) -> bool:
    """While weights are loaded: which names must be there, or need not be, on this stage."""
    if use.function != "load_weights" or not isinstance(use.statement, cst.If):
        return False
    listing = m.Call(func=m.Attribute(value=m.Name(), attr=_LISTING))
    return any(any(True for _ in find(node, cst.Call, listing)) for node in use.body or ())


@rule("weight_tying")
def _weight_tying(use: StageUse) -> bool:
    nodes = use.arms
    if use.function == "__init__":
        weight = m.AssignTarget(target=m.Attribute(value=m.Attribute(), attr=m.Name("weight")))
        return _moves_between_stages(use) or any(True for node in nodes for _ in find(node, cst.AssignTarget, weight))
    if use.function == "load_weights" and any(_renames_weight(node) for node in use.body or ()):
        return True
    return bool({"weight_loader", "loaded_weight"} & names_within(nodes))


def _renames_weight(node: cst.CSTNode) -> bool:
    renaming = m.Assign(targets=[m.AssignTarget(target=m.Name())], value=m.SimpleString())
    values = (assign.value for assign in find(node, cst.Assign, renaming))
    return any(isinstance(value, cst.SimpleString) and str(value.raw_value).endswith(".weight") for value in values)


@rule("stage_exit")
def _stage_exit(use: StageUse) -> bool:
    if use.body is None or not use.is_last or not use.negated or _places_placeholder(use.body):
        return False
    return isinstance(use.statement, cst.If) and find_return(use.body) is not None


@rule("stage_transport")
def _stage_transport(use: StageUse) -> bool:
    return _moves_between_stages(use)


@rule("module_placement")
def _module_placement(use: StageUse) -> bool:
    if use.body is None:
        return False
    if isinstance(use.statement, cst.IfExp):
        choice = any(m.matches(node, _PLACEHOLDER | _NONE) for node in use.arms)
        return choice and use.function == "__init__"
    if use.function == "__init__" and placed_attribute(use) is not None:
        return True
    ends_init = use.function == "__init__" and use.is_last and use.negated and _ends_with_return(use.body)
    return ends_init or _places_placeholder(use.body) or _keeps_from_placeholder(use)


def _places_placeholder(nodes: Iterable[cst.CSTNode]) -> bool:
    return any(True for node in nodes for _ in find(node, cst.Call, _PLACEHOLDER))


def _ends_with_return(body: tuple[cst.CSTNode, ...]) -> bool:
    return bool(body) and m.matches(body[-1], m.SimpleStatementLine(body=[m.Return(value=None)]))


def _keeps_from_placeholder(use: StageUse) -> bool:
    """`continue` in a loop whose rest puts placeholders in."""
    if len(use.body or ()) != 1 or not m.matches((use.body or ())[0], m.SimpleStatementLine(body=[m.Continue()])):
        return False
    loop = next((item for item in use.occurrence.ancestors() if isinstance(item, cst.For)), None)
    return loop is not None and _places_placeholder([loop.body])


@rule("stage_entry")
def _stage_entry(use: StageUse) -> bool:
    if use.body is None or use.is_last:
        return False
    if isinstance(use.statement, cst.IfExp):
        return any(isinstance(node, cst.Subscript) and "tensors" in _words([node]) for node in use.arms)
    if use.orelse is None:
        taken = m.Assign(value=m.Subscript(value=m.Name()))
        return use.negated and any(True for node in use.body for _ in find(node, cst.Assign, taken))
    return bool(assigned_locals(use.body) & assigned_locals(use.orelse))


@rule("verify_gate")
def _verify_gate(use: StageUse) -> bool:
    """Speculative decoding: stages before the last run or commit their own part of a verify round."""
    if use.body is None or not use.is_last or not use.negated:
        return False
    return any("verify" in name.split("_") for name in called_names(use.body))


@rule("first_stage_only")
def _first_stage_only(use: StageUse) -> bool:
    if not use.is_one_armed or use.is_last:
        return False
    fills = any({"input", "embeds"} <= words for words in _word_sets(use))
    return fills or _computes(use.body or ())


@rule("last_stage_only")
def _last_stage_only(use: StageUse) -> bool:
    if use.body is None or use.negated or not use.is_last or not isinstance(use.statement, cst.If):
        return False
    if use.orelse is None:
        return _computes(use.body)
    assigned = assigned_locals(use.body)
    nothing = m.SimpleStatementLine(body=[m.Assign(value=_NONE)])
    return bool(assigned & assigned_locals(use.orelse)) and all(m.matches(node, nothing) for node in use.orelse)


def _computes(nodes: Iterable[cst.CSTNode]) -> bool:
    """Tell whether a local, an item of one or an attribute of one gets a value."""
    local = m.Name() | m.Subscript() | m.Attribute(value=m.Name(m.MatchIfTrue(lambda name: name != "self")))
    return any(m.matches(target, local) for target in assign_targets(nodes))


@rule("result_sync")
def _result_sync(use: StageUse) -> bool:
    """The last stage alone has logits to bring back into their unpadded shape."""
    return use.is_one_armed and use.is_last and any({"post", "forward"} <= words for words in _word_sets(use))


@rule("resource_gate")
def _resource_gate(use: StageUse) -> bool:
    """Outside `__init__`, something of this object that only one stage has; None elsewhere."""
    if not isinstance(use.statement, cst.IfExp) or use.function == "__init__":
        return False
    body, orelse = use.arms
    owned = m.Attribute(value=m.Name("self"))
    return (m.matches(body, owned) and m.matches(orelse, _NONE)) or (
        m.matches(orelse, owned) and m.matches(body, _NONE)
    )


@rule("stage_answer")
def _stage_answer(use: StageUse) -> bool:
    """A yes or no that a helper gives for this kind of stage."""
    return len(use.body or ()) == 1 and m.matches((use.body or ())[0], _BOOL_RETURN)


@rule("stage_guard")
def _stage_guard(use: StageUse) -> bool:
    """The rest of the function is for other stages."""
    return isinstance(use.statement, cst.If) and use.orelse is None and is_only_return(use.body or ())


def _moves_between_stages(use: StageUse) -> bool:
    return any(_TRANSPORT_WORDS & words for words in _word_sets(use))


def _words(nodes: Iterable[cst.CSTNode]) -> set[str]:
    return {word for name in names_within(nodes) for word in name.split("_")}


def _word_sets(use: StageUse) -> list[set[str]]:
    """Return the words of each name that the branch calls, owners included (`queue.append` has two)."""
    callees = [call.func for node in use.arms for call in find(node, cst.Call)]
    return [set(name.split("_")) for name in names_within(callees)]
