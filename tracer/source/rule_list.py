"""Rules that are tried in the order in which they are written: each a role and its positive test."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Seen = TypeVar("Seen")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Rule(Generic[Seen, Found]):
    """One role and the test for it."""

    role: str
    recognise: Callable[[Seen], Found]


class RuleList(list[Rule[Seen, Found]]):
    """The rules of one kind; modules join theirs by a decorator."""

    def rule(self, role: str) -> Callable[[Callable[[Seen], Found]], Callable[[Seen], Found]]:
        """Register a rule; the order of registration is the order of trial."""

        def register(recognise: Callable[[Seen], Found]) -> Callable[[Seen], Found]:
            self.append(Rule(role, recognise))
            return recognise

        return register
