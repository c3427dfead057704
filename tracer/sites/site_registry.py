"""The registry that site rules join: a closed list of roles, each with a positive test of its own."""

from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.source.names import Kind
from auxtap.tracer.source.occurrences import Occurrence


@dataclass(frozen=True, eq=False)
class Finding:
    """What a rule saw: the node that all names of the site share, and the facts for the report."""

    anchor: cst.CSTNode
    name: str | None = None
    value: str | None = None
    to: str | None = None
    offset: int | None = None


@dataclass(frozen=True)
class SiteRule:
    """One role and the test for it."""

    role: str
    recognise: Callable[[Occurrence], Finding | None]


RULES: list[SiteRule] = []

EMPTY_LIST = m.List(elements=[]) | m.Call(func=m.Name("list"), args=[])
EMPTY = EMPTY_LIST | m.Tuple(elements=[]) | m.Call(func=m.Name("set") | m.Name("tuple"), args=[])
NONE = m.Name("None")
BOOL = m.Name("True") | m.Name("False")
STATES_OR_STATE = (Kind.STATES, Kind.STATE)


def rule(role: str) -> Callable[[Callable[[Occurrence], Finding | None]], Callable[[Occurrence], Finding | None]]:
    """Register a rule; the order of registration is the order of trial."""

    def register(recognise: Callable[[Occurrence], Finding | None]) -> Callable[[Occurrence], Finding | None]:
        RULES.append(SiteRule(role, recognise))
        return recognise

    return register
