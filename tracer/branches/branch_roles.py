"""Give every use of `is_last_rank` and `is_first_rank` a role, by what the branch does."""

from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst

from auxtap.tracer.branches import branch_rules
from auxtap.tracer.branches.stage_uses import (
    RULES,
    StageUse,
    accumulators_before,
    names_within,
    placed_attribute,
    stage_use,
)
from auxtap.tracer.report.entries import UNKNOWN, StageBranch
from auxtap.tracer.source.bodies import find_return, is_only_return
from auxtap.tracer.source.fragments import last_name, source_of
from auxtap.tracer.source.occurrences import Occurrence

# Importing the rule module is what fills the registry.
RULE_MODULES = (branch_rules,)


@dataclass(frozen=True, eq=False)
class Branch:
    """A classified branch together with the nodes it was made from."""

    entry: StageBranch
    use: StageUse


def classify_branches(occurrences: Iterable[Occurrence]) -> list[Branch]:
    """Return one branch for each stage name, in source order."""
    return [_classify(stage_use(occurrence)) for occurrence in occurrences]


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
        places=placed_attribute(use) if role == "module_placement" else None,
        returns=_returned(use) if role == "stage_exit" else None,
        drops_aux=_drops_states(use) if role == "stage_exit" else None,
        code=occurrence.source.code_at(occurrence.line),
    )
    return Branch(entry, use)


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
    if isinstance(statement, cst.Param):
        return "parameter"
    return "definition" if isinstance(statement, cst.FunctionDef) else "value"


def _returned(use: StageUse) -> str | None:
    value = find_return(use.body or ())
    if value is None:
        return None
    name = last_name(value.func) if isinstance(value, cst.Call) else None
    return name or source_of(value)


def _drops_states(use: StageUse) -> bool | None:
    accumulators = accumulators_before(use)
    if not accumulators:
        return None
    return not accumulators & names_within(use.body or ())
