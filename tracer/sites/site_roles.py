"""Give every capture name a role, or `unknown`."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import libcst as cst

from auxtap.tracer.report.entries import UNKNOWN, CaptureSite
from auxtap.tracer.sites import capture_rules, consumer_rules, layer_list_rules, switch_rules
from auxtap.tracer.sites.site_registry import RULES, Finding
from auxtap.tracer.source.occurrences import Occurrence

# Importing the rule modules is what fills the registry.
RULE_MODULES = (switch_rules, layer_list_rules, capture_rules, consumer_rules)


@dataclass(frozen=True, eq=False)
class Site:
    """A classified site together with the nodes it was made from."""

    entry: CaptureSite
    anchor: cst.CSTNode
    occurrence: Occurrence


def classify_sites(occurrences: Iterable[Occurrence]) -> list[Site]:
    """Return one site for each group of names that stand in the same place, in source order."""
    sites: dict[tuple[str, cst.CSTNode], Site] = {}
    for occurrence in occurrences:
        role, finding = _recognise(occurrence)
        key = (role, finding.anchor)
        n_names = 0 if occurrence.is_string else 1
        if key in sites:
            known = sites[key]
            entry = replace(known.entry, n_names=known.entry.n_names + n_names)
            sites[key] = replace(known, entry=entry)
            continue
        entry = CaptureSite(
            line=occurrence.line,
            role=role,
            scope=occurrence.scope,
            name=finding.name or occurrence.name,
            value=finding.value,
            to=finding.to,
            offset=finding.offset,
            code=occurrence.source.code_at(occurrence.line),
            n_names=n_names,
        )
        sites[key] = Site(entry, finding.anchor, occurrence)
    return list(sites.values())


def _recognise(occurrence: Occurrence) -> tuple[str, Finding]:
    for site_rule in RULES:
        finding = site_rule.recognise(occurrence)
        if finding is not None:
            return site_rule.role, finding
    return UNKNOWN, Finding(occurrence.reference)
