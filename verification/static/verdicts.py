"""What a check answers: a value, not an exception."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Verified:
    """The check holds; `detail` says what was compared."""

    check: str
    detail: str


@dataclass(frozen=True)
class Rejected:
    """The check does not hold; `detail` says what was found."""

    check: str
    detail: str


Verdict = Verified | Rejected


@dataclass(frozen=True)
class Proof:
    """The answers of a row of checks, in the order in which they were asked."""

    verdicts: tuple[Verdict, ...]

    @property
    def holds(self) -> bool:
        """Whether every check does."""
        return not self.rejected

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """The checks that answered no."""
        return tuple(verdict for verdict in self.verdicts if isinstance(verdict, Rejected))

    @property
    def passed(self) -> tuple[str, ...]:
        """The names of the checks that hold."""
        return tuple(verdict.check for verdict in self.verdicts if isinstance(verdict, Verified))


def judge(check: str, faults: Iterable[str], detail: str) -> Verdict:
    """Return `Rejected` with the first faults, `Verified` with `detail` when there are none."""
    found = list(faults)
    if not found:
        return Verified(check, detail)
    more = f" (and {len(found) - 2} more)" if len(found) > 2 else ""
    return Rejected(check, "; ".join(found[:2]) + more)
