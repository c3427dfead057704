"""Hold the patch of one release against that of another: what moved, what is new, and one verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from auxtap.checkout.source import Source
from auxtap.core.errors import PatchError
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.tracer.reading.trees import Readings
from auxtap.tracer.report.trace_report import TraceReport
from auxtap.tracer.tracing import trace_tree
from auxtap.verification.proof.proved import ProvedPatch, prove_patch, refused_models
from auxtap.verification.releases.differences import Change, Side, find_changes

Outcome = Literal["same plan", "plan changed and proved", "needs a person"]


@dataclass(frozen=True)
class UpgradeReport:
    """Everything that differs, what decides first, and what to make of it.

    `proved` is the new release's patch where there is one.
    """

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
    readings = readings or Readings()
    plan = plan_capture(old.tree, models if old_models is None else old_models, layers, readings)
    before = Side(trace_tree(old.tree, models), plan.models_read.fates, plan)
    trace = trace_tree(new.tree, models)
    names = (old.tree.release, new.tree.release)
    try:
        proved = prove_patch(new, models, layers, readings)
    except PatchError as error:
        changes = find_changes(before, Side(trace, readings.of(new.tree).fates, None))
        return UpgradeReport(*names, changes, "needs a person", error.message, None)
    changes = find_changes(before, Side(trace, proved.classes, proved.patch_set.plan))
    never = refused_models(old.tree, plan).none_left
    if lost := [name for name in proved.refused.none_left if name not in never]:
        return UpgradeReport(*names, changes, "needs a person", _refusal(proved, lost), proved)
    outcome, reason = _judge(proved, trace, changes)
    return UpgradeReport(*names, changes, outcome, reason, proved)


def _refusal(proved: ProvedPatch, lost: Sequence[str]) -> str:
    classes = [refused for name in lost for refused in proved.refused.of(name)]
    return f"nothing of {', '.join(lost)} can be captured any longer: {'; '.join(map(str, classes))}"


def _judge(proved: ProvedPatch, trace: TraceReport, changes: Sequence[Change]) -> tuple[Outcome, str]:
    if not proved.proof.holds:
        found = "; ".join(f"{verdict.check}: {verdict.detail}" for verdict in proved.proof.rejected)
        return "needs a person", f"checks answered no: {found}"
    if trace.n_unknown:
        files = ", ".join(str(each.file) for each in trace.files if each.n_unknown)
        return "needs a person", f"{trace.n_unknown} sites of {files} are not recognised"
    level = proved.level.level + (f": {proved.level.why}" if proved.level.why else "")
    same = not any(change.decides for change in changes)
    return ("same plan" if same else "plan changed and proved"), f"{len(proved.proof.passed)} checks hold; {level}"
