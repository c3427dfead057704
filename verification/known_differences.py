"""Cells that differ from the reference by more than the tolerance, each with its cause found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownDifference:
    """A difference that is understood: it stays below `max_rel`, or it is another one.

    `releases`, `settings` and `states` are those in which it appears; empty means all.
    """

    model: str
    max_rel: float
    cause: str
    releases: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    states: tuple[str, ...] = ()


KNOWN_DIFFERENCES: tuple[KnownDifference, ...] = ()


def known_difference(release: str, model: str, setting: str, state: str) -> KnownDifference | None:
    """Return the entry for a cell, None when it must be equal."""
    for known in KNOWN_DIFFERENCES:
        named = ((known.releases, release), (known.settings, setting), (known.states, state))
        if known.model == model and all(not names or name in names for names, name in named):
            return known
    return None
