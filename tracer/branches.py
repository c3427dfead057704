"""Give every use of `is_last_rank` and `is_first_rank` a role, by what the branch does."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.bodies import (
    assigned_attributes,
    assigned_locals,
    called_names,
    find_return,
    is_only_return,
    statements_of,
)
from auxtap.tracer.fragments import last_name, source_of
from auxtap.tracer.names import Kind, kind_of
from auxtap.tracer.occurrences import Occurrence
from auxtap.tracer.report import UNKNOWN, StageBranch
from auxtap.tracer.walk import find


@dataclass(frozen=True, eq=False)
class StageUse:
    """One use of a stage name, with the branch it decides.

    `negated` says that the body runs where the property does not hold; `body` and `orelse` are None when no
    branch statement hangs on the name.
    """

    occurrence: Occurrence
    statement: cst.CSTNode
    negated: bool
    body: tuple[cst.CSTNode, ...] | None
    orelse: tuple[cst.CSTNode, ...] | None

    @property
    def is_last(self) -> bool:
        """Whether the last stage is asked for, rather than the first."""
        return self.occurrence.name == "is_last_rank"

    @property
    def function(self) -> str:
        """The name of the enclosing function, or nothing."""
        function = self.occurrence.function
        return "" if function is None else function.name.value


@dataclass(frozen=True)
class BranchRule:
    """One role and the test for it."""

    role: str
    recognise: Callable[[StageUse], bool]


@dataclass(frozen=True, eq=False)
class Branch:
    """A classified branch together with the nodes it was made from."""

    entry: StageBranch
    use: StageUse


RULES: list[BranchRule] = []

_TRANSPORT_WORDS = frozenset({"send", "recv", "isend", "irecv", "broadcast", "comm"})


def rule(role: str) -> Callable[[Callable[[StageUse], bool]], Callable[[StageUse], bool]]:
    """Register a rule; the order of registration is the order of trial."""

    def register(recognise: Callable[[StageUse], bool]) -> Callable[[StageUse], bool]:
        RULES.append(BranchRule(role, recognise))
        return recognise

    return register


def classify_branches(occurrences: Iterable[Occurrence]) -> list[Branch]:
    """Return one branch for each stage name, in source order."""
    return [_classify(_stage_use(occurrence)) for occurrence in occurrences]


def _classify(use: StageUse) -> Branch:
    role = next((item.role for item in RULES if item.recognise(use)), UNKNOWN)
    occurrence = use.occurrence
    entry = StageBranch(
        line=occurrence.line,
        role=role,
        scope=occurrence.scope,
        form=_form_of(use),
        negated=use.negated,
        test=occurrence.name,
        places=_placed_attribute(use) if role == "module_placement" else None,
        returns=_returned(use) if role == "stage_exit" else None,
        drops_aux=_drops_states(use) if role == "stage_exit" else None,
        code=occurrence.source.code_at(occurrence.line),
    )
    return Branch(entry, use)


def _stage_use(occurrence: Occurrence) -> StageUse:
    node: cst.CSTNode = occurrence.reference
    negated = False
    for ancestor in occurrence.ancestors():
        if m.matches(ancestor, m.UnaryOperation(operator=m.Not())):
            negated = not negated
        elif not isinstance(ancestor, cst.BooleanOperation | cst.Comparison | cst.ComparisonTarget):
            break
        node = ancestor
    holder = occurrence.fragment.parent_of(node)
    if isinstance(holder, cst.If) and holder.test is node:
        orelse = holder.orelse
        other = None if orelse is None else _orelse_statements(orelse)
        return StageUse(occurrence, holder, negated, statements_of(holder.body), other)
    if isinstance(holder, cst.IfExp) and holder.test is node:
        return StageUse(occurrence, holder, negated, (holder.body,), (holder.orelse,))
    return StageUse(occurrence, holder, negated, None, None)


def _orelse_statements(orelse: cst.If | cst.Else) -> tuple[cst.CSTNode, ...]:
    return (orelse,) if isinstance(orelse, cst.If) else statements_of(orelse.body)


def _form_of(use: StageUse) -> str:
    statement = use.statement
    if isinstance(statement, cst.If):
        if statement.orelse is not None:
            return "if_else"
        return "early_return" if is_only_return(use.body or ()) else "if"
    if isinstance(statement, cst.IfExp):
        return "expression"
    if isinstance(statement, cst.Assert):
        return "assert"
    return "definition" if isinstance(statement, cst.FunctionDef) else "value"


def _placed_attribute(use: StageUse) -> str | None:
    placed = assigned_attributes(use.body or ())
    if use.orelse is not None:
        others = assigned_attributes(use.orelse)
        placed = [name for name in placed if name in others]
    return placed[0] if placed else None


def _returned(use: StageUse) -> str | None:
    value = find_return(use.body or ())
    if value is None:
        return None
    name = last_name(value.func) if isinstance(value, cst.Call) else None
    return name or source_of(value)


def accumulators_before(use: StageUse) -> set[str]:
    """Return the names of the lists of captured states that the enclosing function fills above the branch."""
    function = use.occurrence.function
    if function is None:
        return set()
    before = [item for item in statements_of(function.body) if _line_of(use, item) < use.occurrence.line]
    return {name for name in assigned_locals(before) if kind_of(name) is Kind.STATES}


def _line_of(use: StageUse, node: cst.CSTNode) -> int:
    return use.occurrence.fragment.line_of(node)


def names_within(nodes: Iterable[cst.CSTNode]) -> set[str]:
    """Return every name that stands below one of `nodes`."""
    return {name.value for node in nodes for name in find(node, cst.Name)}


def _drops_states(use: StageUse) -> bool | None:
    accumulators = accumulators_before(use)
    if not accumulators:
        return None
    return not accumulators & names_within(use.body or ())


@rule("definition")
def _definition(use: StageUse) -> bool:
    statement = use.statement
    return isinstance(statement, cst.FunctionDef) and statement.name is use.occurrence.node


@rule("single_stage_assert")
def _single_stage_assert(use: StageUse) -> bool:
    return isinstance(use.statement, cst.Assert) and not use.negated


@rule("stage_value")
def _stage_value(use: StageUse) -> bool:
    return isinstance(use.statement, cst.Assign | cst.AnnAssign | cst.Arg | cst.Return)


@rule("layout_assert")
def _layout_assert(use: StageUse) -> bool:
    checks = m.SimpleStatementLine(body=[m.Assert()])
    return bool(use.body) and all(m.matches(node, checks) for node in use.body or ())


@rule("selection_gate")
def _selection_gate(use: StageUse) -> bool:
    in_setter = kind_of(use.function) is Kind.SETTER
    return in_setter and use.is_last and isinstance(use.statement, cst.If)


@rule("logits_gate")
def _logits_gate(use: StageUse) -> bool:
    if use.body is None or use.negated or not use.is_last:
        return False
    return "logits_processor" in called_names(use.body)


@rule("runner_gate")
def _runner_gate(use: StageUse) -> bool:
    if use.body is None or use.orelse is None or not use.is_last:
        return False
    return "forward" in called_names(use.body) and "forward" in called_names(use.orelse)


@rule("weight_skip")
def _weight_skip(use: StageUse) -> bool:
    skip = m.SimpleStatementLine(body=[m.Continue()])
    return use.negated and len(use.body or ()) == 1 and m.matches((use.body or ())[0], skip)


@rule("weight_tying")
def _weight_tying(use: StageUse) -> bool:
    nodes = (*(use.body or ()), *(use.orelse or ()))
    if use.function == "__init__":
        weight = m.AssignTarget(target=m.Attribute(value=m.Attribute(), attr=m.Name("weight")))
        return _moves_between_stages(use) or any(True for node in nodes for _ in find(node, cst.AssignTarget, weight))
    return bool({"weight_loader", "loaded_weight"} & names_within(nodes))


@rule("stage_exit")
def _stage_exit(use: StageUse) -> bool:
    if use.body is None or not use.is_last or not use.negated:
        return False
    return isinstance(use.statement, cst.If) and find_return(use.body) is not None


@rule("stage_transport")
def _stage_transport(use: StageUse) -> bool:
    return _moves_between_stages(use)


@rule("module_placement")
def _module_placement(use: StageUse) -> bool:
    return use.body is not None and use.function == "__init__" and _placed_attribute(use) is not None


@rule("stage_entry")
def _stage_entry(use: StageUse) -> bool:
    if use.body is None or use.orelse is None or use.is_last or not isinstance(use.statement, cst.If):
        return False
    return bool(assigned_locals(use.body) & assigned_locals(use.orelse))


@rule("first_stage_only")
def _first_stage_only(use: StageUse) -> bool:
    alone = use.body is not None and use.orelse is None and not use.negated
    return alone and not use.is_last and bool(assigned_locals(use.body or ()))


@rule("last_stage_only")
def _last_stage_only(use: StageUse) -> bool:
    alone = use.body is not None and use.orelse is None and not use.negated
    return alone and use.is_last and bool(assigned_locals(use.body or ()))


@rule("result_sync")
def _result_sync(use: StageUse) -> bool:
    """The last stage alone has logits to bring back into their unpadded shape."""
    alone = use.body is not None and use.orelse is None and not use.negated
    return alone and use.is_last and any({"post", "forward"} <= words for words in _word_sets(use))


def _moves_between_stages(use: StageUse) -> bool:
    return any(_TRANSPORT_WORDS & words for words in _word_sets(use))


def _word_sets(use: StageUse) -> list[set[str]]:
    """Return the words of each name that the branch calls, owners included (`queue.append` has two)."""
    nodes = (*(use.body or ()), *(use.orelse or ()))
    callees = [call.func for node in nodes for call in find(node, cst.Call)]
    return [set(name.split("_")) for name in names_within(callees)]
