"""Compare the traces of two trees by structure: what is new, gone, moved or changed, and whether it matters."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from auxtap.tracer.report.entries import CaptureSite, FileTrace, JsonEntry, StageBranch
from auxtap.tracer.report.trace_report import Hazard, LayerRule, TraceReport

# What decides which values are captured, and whether they arrive.
_DECISIVE = frozenset(
    {
        "accumulator_init",
        "append",
        "append_in_place",
        "boundary_hand_in",
        "collector_hand_in",
        "gather",
        "hand_over",
        "join",
        "layer_mark",
        "layer_test",
        "layers_set",
        "return_pair",
        "selection_gate",
        "setter",
        "setter_call",
        "stage_carry",
        "state_value",
        "transform",
        "unpack",
    }
)


@dataclass(frozen=True)
class Place:
    """A site or branch of one tree."""

    file: PurePosixPath
    entry: CaptureSite | StageBranch

    def to_json(self) -> JsonEntry:
        """Return it as data."""
        entry = self.entry
        return {"file": str(self.file), "line": entry.line, "scope": entry.scope, "role": entry.role}


@dataclass(frozen=True)
class Change:
    """One difference: `new` has no old place, `gone` no new one, `moved`, `role` and `changed` have both."""

    kind: str
    old: Place | None
    new: Place | None

    @property
    def place(self) -> Place:
        """The new place, or the old one of what is gone."""
        place = self.new or self.old
        assert place is not None
        return place

    @property
    def matters(self) -> bool:
        """Whether the change bears on what is captured or whether it arrives; a move alone does not."""
        roles = {place.entry.role for place in (self.old, self.new) if place is not None}
        return self.kind != "moved" and bool(roles & _DECISIVE)

    def to_json(self) -> dict[str, object]:
        """Return it as data."""
        return {
            "kind": self.kind,
            "matters": self.matters,
            "old": None if self.old is None else self.old.to_json(),
            "new": None if self.new is None else self.new.to_json(),
        }


@dataclass(frozen=True)
class Comparison:
    """The differences between two traces; `n_same` entries are the same by structure, whatever their lines."""

    old: TraceReport
    new: TraceReport
    changes: tuple[Change, ...]
    n_same: int
    rules_changed: tuple[tuple[LayerRule | None, LayerRule | None], ...]
    hazards_new: tuple[Hazard, ...]
    hazards_gone: tuple[Hazard, ...]
    breaks_new: tuple[str, ...] = ()
    breaks_gone: tuple[str, ...] = ()

    @property
    def matters(self) -> bool:
        """Whether anything bears on what is captured."""
        rules = bool(self.rules_changed or self.hazards_new or self.hazards_gone)
        ways = bool(self.breaks_new or self.breaks_gone)
        return rules or ways or any(change.matters for change in self.changes)

    def to_json(self) -> dict[str, object]:
        """Return it as data."""
        return {
            "schema": 1,
            "old": {"release": self.old.release, "origin": self.old.origin, "commit": self.old.commit},
            "new": {"release": self.new.release, "origin": self.new.origin, "commit": self.new.commit},
            "matters": self.matters,
            "n_same": self.n_same,
            "n_unknown": self.new.n_unknown,
            "changes": [change.to_json() for change in self.changes],
            "layer_rules": [
                {"old": None if old is None else old.to_json(), "new": None if new is None else new.to_json()}
                for old, new in self.rules_changed
            ],
            "hazards_new": [hazard.to_json() for hazard in self.hazards_new],
            "hazards_gone": [hazard.to_json() for hazard in self.hazards_gone],
            "breaks_new": list(self.breaks_new),
            "breaks_gone": list(self.breaks_gone),
        }


def _breaks(report: TraceReport) -> set[str]:
    return {reason for flow in report.flows for reason in flow.breaks}


def compare(old: TraceReport, new: TraceReport) -> Comparison:
    """Match the entries of two reports: first where they stand, then anywhere, then by place with another role."""
    before, after = list(_places(old.files)), list(_places(new.files))
    n_all = len(before)
    before, after, same = _match(before, after, lambda place: (place.file, place.entry.scope, _shape(place.entry)))
    n_same = n_all - len(before)
    assert len(same) == n_same
    changes: list[Change] = []
    for kind, key in (
        ("role", lambda place: (place.file, place.entry.scope, _name(place.entry), place.entry.code)),
        ("changed", lambda place: (place.file, place.entry.scope, place.entry.role, _name(place.entry))),
        ("moved", lambda place: _shape(place.entry)),
    ):
        before, after, pairs = _match(before, after, key)
        changes.extend(Change(_kind(kind, first, second), first, second) for first, second in pairs)
    changes.extend(Change("gone", place, None) for place in before)
    changes.extend(Change("new", None, place) for place in after)
    changes.sort(key=lambda change: (str(change.place.file), change.place.entry.line))
    known = {_hazard_key(hazard) for hazard in old.hazards}
    now = {_hazard_key(hazard) for hazard in new.hazards}
    return Comparison(
        old=old,
        new=new,
        changes=tuple(changes),
        n_same=n_same,
        rules_changed=tuple(_changed_rules(old.layer_rules, new.layer_rules)),
        hazards_new=tuple(hazard for hazard in new.hazards if _hazard_key(hazard) not in known),
        hazards_gone=tuple(hazard for hazard in old.hazards if _hazard_key(hazard) not in now),
        breaks_new=tuple(sorted(_breaks(new) - _breaks(old))),
        breaks_gone=tuple(sorted(_breaks(old) - _breaks(new))),
    )


def _kind(kind: str, old: Place, new: Place) -> str:
    """The same line of the same scope with the same role has changed in its surroundings only."""
    return "changed" if kind == "role" and old.entry.role == new.entry.role else kind


def _places(traces: Iterable[FileTrace]) -> Iterator[Place]:
    for trace in traces:
        yield from (Place(trace.file, site) for site in trace.capture_sites)
        yield from (Place(trace.file, branch) for branch in trace.stage_branches)


def _shape(entry: CaptureSite | StageBranch) -> Hashable:
    """Return what an entry is, without where it stands and without the wording of its source line."""
    if isinstance(entry, CaptureSite):
        return replace(entry, line=0, scope="", code="", note=None, n_names=0)
    return replace(entry, line=0, scope="", code="", note=None)


def _name(entry: CaptureSite | StageBranch) -> str:
    return entry.name if isinstance(entry, CaptureSite) else entry.test


def _match(
    before: list[Place], after: list[Place], key: Callable[[Place], Hashable]
) -> tuple[list[Place], list[Place], list[tuple[Place, Place]]]:
    """Pair places of equal key in order; return what is left of both, and the pairs."""
    waiting: dict[Hashable, list[Place]] = defaultdict(list)
    for place in before:
        waiting[key(place)].append(place)
    pairs: list[tuple[Place, Place]] = []
    left: list[Place] = []
    for place in after:
        candidates = waiting.get(key(place))
        if candidates:
            pairs.append((candidates.pop(0), place))
        else:
            left.append(place)
    return [place for places in waiting.values() for place in places], left, pairs


def _hazard_key(hazard: Hazard) -> Hashable:
    """Two releases have the same hazard when it is on by default alike; lines move and flags get new names."""
    return hazard.name, hazard.default_on, hazard.hardware


def _changed_rules(
    old: Iterable[LayerRule], new: Iterable[LayerRule]
) -> Iterator[tuple[LayerRule | None, LayerRule | None]]:
    before = {rule.scope: rule for rule in old}
    after = {rule.scope: rule for rule in new}
    for scope in dict.fromkeys((*before, *after)):
        first, second = before.get(scope), after.get(scope)
        if first is None or second is None or replace(first, evidence=()) != replace(second, evidence=()):
            yield first, second
