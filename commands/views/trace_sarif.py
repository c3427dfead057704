"""Write a trace in SARIF 2.1.0, as editors and code scanning read it: what needs a person's eye, with its lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from auxtap.tracer.report.entries import UNKNOWN
from auxtap.tracer.report.roles import UNKNOWN_ROLE
from auxtap.tracer.report.trace_report import Evidence, Hazard, TraceReport

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
# The root that every path is relative to: the tree with `python/sglang` in it.
ROOT = "SRCROOT"
_UNKNOWN, _DROP, _BREAK, _SKIPPED = "unknown-site", "stage-drop", "broken-flow", "unread-file"
_HAZARD = "hazard/"
_OF_FACTS = {"dropped": _DROP, "broken": _BREAK}


@dataclass(frozen=True)
class _Rule:
    """A kind of result: `level` is SARIF's error, warning or note."""

    name: str
    level: str
    text: str
    help: str = ""

    def to_json(self) -> dict[str, Any]:
        more = {"help": {"text": self.help}} if self.help else {}
        level = {"level": self.level}
        return {"id": self.name, "shortDescription": {"text": self.text}, "defaultConfiguration": level, **more}


@dataclass(frozen=True)
class _Result:
    """One finding; the first of its lines is its place, the others belong to it."""

    rule: str
    text: str
    lines: Sequence[Evidence]


_RULES = (
    _Rule(
        _UNKNOWN, "error", "A capture site or stage branch that the tracer does not recognise", UNKNOWN_ROLE.explanation
    ),
    _Rule(_DROP, "warning", "A pipeline stage returns without the states that it captured"),
    _Rule(_BREAK, "warning", "The way of captured states ends before the logits processor"),
    _Rule(_SKIPPED, "error", "A file that cannot be read as Python"),
)


def sarif_of(report: TraceReport, tool_version: str) -> dict[str, Any]:
    """Return the log of one run."""
    rules = [*_RULES, *_hazard_rules(report.hazards)]
    numbers = {rule.name: number for number, rule in enumerate(rules)}
    levels = {rule.name: rule.level for rule in rules}
    results = [
        {
            "ruleId": found.rule,
            "ruleIndex": numbers[found.rule],
            "level": levels[found.rule],
            "message": {"text": found.text},
            **_places(found.lines),
        }
        for found in _results(report)
    ]
    driver = {
        "name": "auxtap",
        "semanticVersion": tool_version,
        "rules": [rule.to_json() for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": {"text": "the root of the SGLang tree that was traced"}}},
        "properties": {"release": report.release, "origin": report.origin, "commit": report.commit},
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _hazard_rules(hazards: Sequence[Hazard]) -> Iterator[_Rule]:
    for hazard in {hazard.name: hazard for hazard in hazards}.values():
        help_text = f"Under: {hazard.trigger}. To avoid it: {hazard.avoid}."
        yield _Rule(f"{_HAZARD}{hazard.name}", "warning" if hazard.default_on else "note", hazard.text, help_text)


def _results(report: TraceReport) -> Iterator[_Result]:
    for trace in report.files:
        for entry in trace.entries:
            if entry.role == UNKNOWN:
                line = Evidence(trace.file, entry.line, entry.scope, entry.code)
                yield _Result(_UNKNOWN, f"{entry.scope}: not recognised: {entry.code}", (line,))
    for fact in report.facts:
        if fact.kind in _OF_FACTS:
            yield _Result(_OF_FACTS[fact.kind], fact.text, fact.evidence)
    for hazard in report.hazards:
        yield _Result(f"{_HAZARD}{hazard.name}", f"{hazard.text} ({hazard.trigger})", hazard.evidence)
    for skipped in report.skipped:
        yield _Result(_SKIPPED, skipped.reason, (Evidence(skipped.file, 1, "", ""),))


def _places(lines: Sequence[Evidence]) -> dict[str, Any]:
    places = [_place(line) for line in lines]
    related = [{"id": number, **place} for number, place in enumerate(places[1:], 1)]
    return {"locations": places[:1], **({"relatedLocations": related} if related else {})}


def _place(line: Evidence) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": max(line.line, 1)}
    if line.code:
        region["snippet"] = {"text": line.code}
    artifact = {"uri": _uri(str(line.file)), "uriBaseId": ROOT}
    place: dict[str, Any] = {"physicalLocation": {"artifactLocation": artifact, "region": region}}
    if line.scope:
        place["logicalLocations"] = [{"fullyQualifiedName": line.scope}]
    return place


def _uri(path: str) -> str:
    """Return a relative path as a URI: what may not stand in one is escaped."""
    return quote(path.encode(errors="surrogateescape"))
