"""Find what the setters of each model class make of a draft model's ids, through the classes that they hand them to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from auxtap.core.draft_ids import OffsetRule
from auxtap.tracer.flow.layers import is_written_out
from auxtap.tracer.report.entries import CaptureSite, FileTrace
from auxtap.tracer.report.trace_report import Flow, FlowLink, LayerRule

_AS_THEY_ARE = (OffsetRule(0),)
_SELF = "self"


@dataclass(frozen=True)
class DraftSetter:
    """What a setter that a model class offers to SGLang makes of ids: entries of a list, which are capture indices."""

    model: str
    file: PurePosixPath
    name: str
    rules: tuple[OffsetRule, ...]


def find_setters(
    traces: Sequence[FileTrace], flows: Sequence[Flow], layer_rules: Sequence[LayerRule]
) -> tuple[DraftSetter, ...]:
    """Return the setters of every model class with a flow that are understood to the end, by file, class and name.

    Left out are those whose list does not hold capture indices.
    """
    reader = _SetterReader(traces, layer_rules)
    found = [setter for flow in flows if flow.shift == 0 for setter in reader.setters_of(flow)]
    return tuple(sorted(found, key=lambda setter: (str(setter.file), setter.model, setter.name)))


class _SetterReader:
    def __init__(self, traces: Sequence[FileTrace], rules: Sequence[LayerRule]) -> None:
        self._sites: dict[tuple[PurePosixPath, str], list[CaptureSite]] = {}
        for trace in traces:
            for site in trace.capture_sites:
                self._sites.setdefault((trace.file, site.scope), []).append(site)
        self._rules = {(rule.evidence[0].file, rule.scope): rule.offsets for rule in rules}

    def setters_of(self, flow: Flow) -> Iterator[DraftSetter]:
        """Yield the understood setters of a flow's entry class, inherited ones included."""
        levels = _levels(flow)
        entry = flow.links[0]
        for name in self._names(levels[0]):
            rules = self._resolve(levels, 0, name)
            if rules is not None and any(rule.offset is not None for rule in rules):
                yield DraftSetter(flow.model, entry.file, name, rules)

    def _names(self, level: Sequence[FlowLink]) -> list[str]:
        known = {(link.file, link.name) for link in level}
        scopes = [
            scope
            for (file, scope), sites in self._sites.items()
            if (file, scope.split(".")[0]) in known and any(site.role == "setter" for site in sites)
        ]
        return sorted({scope.split(".")[-1] for scope in scopes})

    def _resolve(self, levels: Sequence[Sequence[FlowLink]], at: int, name: str) -> tuple[OffsetRule, ...] | None:
        """Return what the setter `name` of the classes of a level does to ids in the end."""
        places = ((link.file, f"{link.name}.{name}") for link in levels[at])
        place = next((place for place in places if place in self._sites), None)
        if place is None:
            return None
        sites = self._sites[place]
        calls = [site for site in sites if site.role == "setter_call" and not is_written_out(site.value or "None")]
        rules = self._rules.get(place)
        if not calls:
            takes = [site for site in sites if site.role == "layers_set" and (site.value or "").isidentifier()]
            # A backbone's own setter, which is given a list: whether it keeps it is seen when a server is armed.
            return rules or (_AS_THEY_ARE if at and len(takes) == 1 and takes[0].condition is None else None)
        inner = {self._inner(levels, at, call, name) for call in calls}
        if rules is None and all((call.value or "").isidentifier() and call.condition is None for call in calls):
            rules = _AS_THEY_ARE
        handed = inner.pop() if len(inner) == 1 else None
        return None if rules is None or handed is None else _joined(rules, handed)

    def _inner(
        self, levels: Sequence[Sequence[FlowLink]], at: int, call: CaptureSite, name: str
    ) -> tuple[OffsetRule, ...] | None:
        if call.to == _SELF:
            return None if call.name == name else self._resolve(levels, at, call.name)
        held = at + 1 < len(levels) and call.to == f"{_SELF}.{levels[at + 1][0].member}"
        return self._resolve(levels, at + 1, call.name) if held else None


def _levels(flow: Flow) -> list[list[FlowLink]]:
    """Return the classes of a flow by what holds them: each class that is held, with the bases behind it."""
    levels: list[list[FlowLink]] = [[]]
    for link in flow.links:
        if link.member:
            levels.append([])
        levels[-1].append(link)
    return levels


def _joined(outer: tuple[OffsetRule, ...], inner: tuple[OffsetRule, ...]) -> tuple[OffsetRule, ...] | None:
    """Return both one after the other, where the conditions of one of them are the only ones."""
    if len(outer) == 1 and outer[0] == OffsetRule(0):
        return inner
    if len(inner) == 1 and inner[0].condition is None and inner[0].offset is not None:
        offset = inner[0].offset
        return tuple(
            OffsetRule(None if rule.offset is None else rule.offset + offset, rule.condition) for rule in outer
        )
    return None
