"""Hold the patch of one release against that of another: what moved, what is new, and one verdict."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from auxtap.checkout.source import Source
from auxtap.core.errors import PatchError
from auxtap.rewriters.patch.hazards import Decision
from auxtap.rewriters.patch.plan import CapturePlan, plan_capture
from auxtap.rewriters.places.insertion import Insertion
from auxtap.tracer.reading.trees import Readings
from auxtap.tracer.report.trace_report import TraceReport
from auxtap.tracer.tracing import trace_tree
from auxtap.verification.proof.proved import ProvedPatch, prove_patch

Outcome = Literal["same plan", "plan changed and proved", "needs a person"]


@dataclass(frozen=True)
class Change:
    """One difference: `what` it is about, before and after, empty where there was or is nothing."""

    topic: str
    what: str
    before: str
    after: str


@dataclass(frozen=True)
class UpgradeReport:
    """Everything that differs, and what to make of it; `proved` is the new release's patch where there is one."""

    before: str
    after: str
    changes: tuple[Change, ...]
    outcome: Outcome
    reason: str
    proved: ProvedPatch | None


def compare_releases(
    old: Source,
    new: Source,
    models: Sequence[str],
    layers: Sequence[int],
    old_models: Sequence[str] | None = None,
    readings: Readings | None = None,
) -> UpgradeReport:
    """Plan both, trace both, prove the new one, and say what changed.

    Raises:
        PatchError: there is no plan for the old release, so nothing can be compared.
    """
    plan = plan_capture(old.tree, models if old_models is None else old_models, layers, readings)
    traces = (trace_tree(old.tree, models), trace_tree(new.tree, models))
    changes = [*_site_changes(*traces), *_rule_changes(*traces)]
    names = (old.tree.release, new.tree.release)
    try:
        proved = prove_patch(new, models, layers, readings)
    except PatchError as error:
        return UpgradeReport(*names, tuple(changes), "needs a person", error.message, None)
    changes = [*_place_changes(plan, proved.patch_set.plan), *_decision_changes(plan, proved.patch_set.plan), *changes]
    outcome, reason = _judge(plan, proved, traces[1])
    return UpgradeReport(*names, tuple(changes), outcome, reason, proved)


def _judge(plan: CapturePlan, proved: ProvedPatch, trace: TraceReport) -> tuple[Outcome, str]:
    if not proved.proof.holds:
        found = "; ".join(f"{verdict.check}: {verdict.detail}" for verdict in proved.proof.rejected)
        return "needs a person", f"checks answered no: {found}"
    if trace.n_unknown:
        files = ", ".join(str(each.file) for each in trace.files if each.n_unknown)
        return "needs a person", f"{trace.n_unknown} sites of {files} are not recognised"
    level = proved.level.level + (f": {proved.level.why}" if proved.level.why else "")
    same = _shape(plan) == _shape(proved.patch_set.plan) and plan.decisions == proved.patch_set.plan.decisions
    return ("same plan" if same else "plan changed and proved"), f"{len(proved.proof.passed)} checks hold; {level}"


def _shape(plan: CapturePlan) -> list[tuple[str, str, str, str]]:
    return [_key(insertion) for insertion in plan.insertions]


def _key(insertion: Insertion) -> tuple[str, str, str, str]:
    return insertion.kind, str(insertion.path), insertion.scope, insertion.code


def _place_changes(old: CapturePlan, new: CapturePlan) -> Iterator[Change]:
    before, after = _places(old), _places(new)
    for place in sorted({*before, *after}):
        pair = before.get(place, ""), after.get(place, "")
        if pair[0] != pair[1]:
            yield Change("place", " in ".join(place), *pair)


def _places(plan: CapturePlan) -> Mapping[tuple[str, str], str]:
    return {
        (insertion.kind, insertion.path.name): f"{insertion.scope}: {insertion.code}"
        for insertion in plan.insertions
        if insertion.kind != "gate"
    }


def _decision_changes(old: CapturePlan, new: CapturePlan) -> Iterator[Change]:
    before, after = _decisions(old.decisions), _decisions(new.decisions)
    for hazard in sorted({*before, *after}):
        pair = before.get(hazard, ""), after.get(hazard, "")
        if pair[0] != pair[1]:
            yield Change("hazard", hazard, *pair)
    if old.server_flags != new.server_flags:
        yield Change("server flags", "auxtap serve passes", " ".join(old.server_flags), " ".join(new.server_flags))


def _decisions(decisions: Sequence[Decision]) -> Mapping[str, str]:
    found: dict[str, list[str]] = {}
    for decision in decisions:
        found.setdefault(decision.hazard, []).append(f"{decision.verdict} {' '.join(decision.flags)}".strip())
    return {hazard: "; ".join(sorted(verdicts)) for hazard, verdicts in found.items()}


def _site_changes(old: TraceReport, new: TraceReport) -> Iterator[Change]:
    before, after = _sites(old), _sites(new)
    for place in sorted({*before, *after}):
        pair = before.get(place, 0), after.get(place, 0)
        if pair[0] != pair[1]:
            yield Change("sites", f"{place[1]} in {place[0]}", str(pair[0] or ""), str(pair[1] or ""))


def _sites(report: TraceReport) -> Mapping[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for trace in report.files:
        roles = [site.role for site in trace.capture_sites] + [branch.role for branch in trace.stage_branches]
        for role in roles:
            place = trace.file.name, role
            counts[place] = counts.get(place, 0) + 1
    return counts


def _rule_changes(old: TraceReport, new: TraceReport) -> Iterator[Change]:
    before, after = _rules(old), _rules(new)
    for scope in sorted({*before, *after}):
        pair = before.get(scope, ""), after.get(scope, "")
        if pair[0] != pair[1]:
            yield Change("setter rule", scope, *pair)


def _rules(report: TraceReport) -> Mapping[str, str]:
    return {rule.scope: f"ids + {'?' if rule.offset is None else rule.offset}" for rule in report.layer_rules}
