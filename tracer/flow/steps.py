"""Put each site and branch into the step of the flow that it belongs to."""

from auxtap.tracer.report.entries import CaptureSite, FileTrace, StageBranch
from auxtap.tracer.report.roles import Step, role_of
from auxtap.tracer.source.names import Kind, kind_of

_CONSUMING = frozenset({"prune", "join", "store"})
_CHOOSING = frozenset({Kind.FLAG, Kind.LAYER_IDS, Kind.LAYERS})
_EITHER_END = frozenset({"parameter", "none_test"})


def step_of(trace: FileTrace, entry: CaptureSite | StageBranch) -> Step:
    """Return the step of an entry of `trace`.

    Parameters and tests for None stand at both ends of the flow, and a switch is tested both where layers are
    chosen and where the pair is unpacked: for these what they hold, or the rest of their file or function, decides.
    """
    if isinstance(entry, CaptureSite) and entry.role == "parameter" and kind_of(entry.name) in _CHOOSING:
        return Step.SELECTION
    if entry.role in _EITHER_END and any(site.role in _CONSUMING for site in trace.capture_sites):
        return Step.CONSUMER
    if entry.role == "flag_test":
        beside = {site.role for site in trace.capture_sites if site.scope == entry.scope}
        return Step.SELECTION if "setter_call" in beside else Step.HAND_OVER
    return role_of(entry.role).step
