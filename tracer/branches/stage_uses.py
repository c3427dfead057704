"""A use of `is_last_rank` or `is_first_rank` with the branch that hangs on it, and the registry of their rules."""

from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.source.bodies import assigned_attributes, assigned_locals, statements_of
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.occurrences import Occurrence
from auxtap.tracer.source.rule_list import RuleList
from auxtap.tracer.source.walk import find


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

    @property
    def arms(self) -> tuple[cst.CSTNode, ...]:
        """The body and the other arm together."""
        return (*(self.body or ()), *(self.orelse or ()))

    @property
    def is_one_armed(self) -> bool:
        """Whether the branch is taken where the property holds, and nothing happens elsewhere."""
        return self.body is not None and self.orelse is None and not self.negated


RULES: RuleList[StageUse, bool] = RuleList()
rule = RULES.rule


def stage_use(occurrence: Occurrence) -> StageUse:
    """Return the branch that a stage name decides, by itself or with other conditions."""
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


def names_within(nodes: Iterable[cst.CSTNode]) -> set[str]:
    """Return every name that stands below one of `nodes`."""
    return {name.value for node in nodes for name in find(node, cst.Name)}


def placed_attribute(use: StageUse) -> str | None:
    """Return the attribute of self that every arm of the branch assigns."""
    if isinstance(use.statement, cst.IfExp):
        assign = use.occurrence.fragment.parent_of(use.statement)
        placed = assigned_attributes([assign]) if isinstance(assign, cst.Assign) else []
    else:
        placed = assigned_attributes(use.body or ())
        if use.orelse is not None:
            others = assigned_attributes(use.orelse)
            placed = [name for name in placed if name in others]
    return placed[0] if placed else None


def accumulators_before(use: StageUse) -> set[str]:
    """Return the names of the lists of captured states that the enclosing function fills above the branch."""
    function = use.occurrence.function
    if function is None:
        return set()
    fragment = use.occurrence.fragment
    before = [item for item in statements_of(function.body) if fragment.line_of(item) < use.occurrence.line]
    return {name for name in assigned_locals(before) if kind_of(name) is Kind.STATES}
