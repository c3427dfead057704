"""What differs between the patches and the traces of two releases, difference by difference."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from auxtap.core.draft_ids import OffsetRule
from auxtap.rewriters.patch.hazards import Decision
from auxtap.rewriters.patch.plan import CapturePlan
from auxtap.tracer.flow.setters import DraftSetter
from auxtap.tracer.report.readings import ClassFate
from auxtap.tracer.report.trace_report import TraceReport

_CAPTURED = {
    "native": "captured, chosen by SGLang's own setter",
    "arm": "captured, chosen by the tap alone",
    "loop": "captured by a line in the loop",
}
_REFUSED = "refused"


@dataclass(frozen=True)
class Change:
    """One difference: `what` it is about, before and after, empty where there was or is nothing.

    `decides` tells that what the old patch did is no longer done in the same way.
    """

    topic: str
    what: str
    before: str
    after: str
    decides: bool


@dataclass(frozen=True)
class Side:
    """One of two releases: its trace, what becomes of its model classes, and its plan where one can be made."""

    trace: TraceReport
    classes: tuple[ClassFate, ...]
    plan: CapturePlan | None


def find_changes(old: Side, new: Side) -> tuple[Change, ...]:
    """Return every difference, those that decide first."""
    found = list(_differences("class", _fates(old.classes), _fates(new.classes), _was_captured))
    if old.plan is not None and new.plan is not None:
        found += _plan_changes(old.plan, new.plan)
    found += _differences("setter rule", _rules(old.trace), _rules(new.trace), _never)
    found += _differences("sites", _sites(old.trace), _sites(new.trace), _never)
    return tuple(sorted(found, key=lambda change: not change.decides))


def _differences(
    topic: str, old: Mapping[str, str], new: Mapping[str, str], decides: Callable[[str], bool]
) -> Iterator[Change]:
    for what in sorted({*old, *new}):
        before, after = old.get(what, ""), new.get(what, "")
        if before != after:
            yield Change(topic, what, before, after, decides(before))


def _always(before: str) -> bool:
    return True


def _never(before: str) -> bool:
    return False


def _was_captured(before: str) -> bool:
    return before in _CAPTURED.values()


def _fates(classes: Sequence[ClassFate]) -> Mapping[str, str]:
    return {fate.name: _CAPTURED.get(fate.way) or f"{_REFUSED}: {fate.reason}" for fate in classes}


def _plan_changes(old: CapturePlan, new: CapturePlan) -> Iterator[Change]:
    yield from _differences("place", _places(old), _places(new), _always)
    yield from _differences("hazard", _decisions(old.decisions), _decisions(new.decisions), _always)
    yield from _differences("server flags", _flags(old), _flags(new), _always)
    # The states are the same; a drafter that is trained on them has to name other ids. A new setter changes nothing.
    yield from _differences("draft-config ids", _setters(old.setters), _setters(new.setters), bool)


def _places(plan: CapturePlan) -> Mapping[str, str]:
    return {
        f"{insertion.kind} in {insertion.path.name}": f"{insertion.scope}: {insertion.text.strip()}"
        for insertion in plan.insertions
        if insertion.kind != "gate"
    }


def _flags(plan: CapturePlan) -> Mapping[str, str]:
    return {"auxtap serve passes": " ".join(plan.server_flags)}


def _decisions(decisions: Sequence[Decision]) -> Mapping[str, str]:
    found: dict[str, list[str]] = {}
    for decision in decisions:
        found.setdefault(decision.hazard, []).append(f"{decision.verdict} {' '.join(decision.flags)}".strip())
    return {hazard: "; ".join(sorted(verdicts)) for hazard, verdicts in found.items()}


def _setters(setters: Sequence[DraftSetter]) -> Mapping[str, str]:
    return {f"{setter.model}.{setter.name}": describe_rules(setter.rules) for setter in setters}


def describe_rules(rules: Sequence[OffsetRule]) -> str:
    """Say in a few words what a setter makes of ids."""
    words = (
        ("ids ?" if rule.offset is None else f"ids + {rule.offset}" if rule.offset else "ids")
        + ("" if rule.condition is None else f" if {rule.condition}".replace(" if otherwise", " otherwise"))
        for rule in rules
    )
    return "; ".join(words)


def _sites(report: TraceReport) -> Mapping[str, str]:
    counts: dict[str, int] = {}
    for trace in report.files:
        for entry in trace.entries:
            place = f"{entry.role} in {trace.file.name}"
            counts[place] = counts.get(place, 0) + 1
    return {place: str(count) for place, count in counts.items()}


def _rules(report: TraceReport) -> Mapping[str, str]:
    return {rule.scope: describe_rules(rule.offsets) for rule in report.layer_rules}
