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


KNOWN_DIFFERENCES: tuple[KnownDifference, ...] = (
    KnownDifference(
        "gpt_oss",
        0.5,
        "SGLang up to 0.5.6.post2 does not read `truncate: false` of the YaRN scaling (layers/rotary_embedding.py, "
        "`_yarn_find_correction_range`), so that its rotary frequencies are not the checkpoint's; served from a "
        "config.json that says `truncate: true`, every state equals a reference that reads the same (1.8e-6)",
        releases=("0.5.6", "0.5.6.post1", "0.5.6.post2"),
    ),
)


def known_difference(release: str, model: str, setting: str, state: str) -> KnownDifference | None:
    """Return the entry for a cell, None when it must be equal."""
    for known in KNOWN_DIFFERENCES:
        named = ((known.releases, release), (known.settings, setting), (known.states, state))
        if known.model == model and all(not names or name in names for names, name in named):
            return known
    return None
