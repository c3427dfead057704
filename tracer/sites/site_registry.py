"""The registry that site rules join: a closed list of roles, each with a positive test of its own."""

from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.source.names import Kind
from auxtap.tracer.source.occurrences import Occurrence
from auxtap.tracer.source.rule_list import RuleList


@dataclass(frozen=True, eq=False)
class Finding:
    """What a rule saw: the node that all names of the site share, and the facts for the report."""

    anchor: cst.CSTNode
    name: str | None = None
    value: str | None = None
    to: str | None = None
    offset: int | None = None


RULES: RuleList[Occurrence, Finding | None] = RuleList()
rule = RULES.rule

EMPTY_LIST = m.List(elements=[]) | m.Call(func=m.Name("list"), args=[])
EMPTY = EMPTY_LIST | m.Tuple(elements=[]) | m.Call(func=m.Name("set") | m.Name("tuple"), args=[])
NONE = m.Name("None")
BOOL = m.Name("True") | m.Name("False")
STATES_OR_STATE = (Kind.STATES, Kind.STATE)
