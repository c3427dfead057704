"""Hazards of states that are spread over ranks and gathered too far, too late or not at all."""

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.tracer.branches.stage_uses import names_within
from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.flow.evidence import evidence_at, evidence_of, find_in
from auxtap.tracer.hazards.capturing import sites_of
from auxtap.tracer.hazards.found import Found
from auxtap.tracer.hazards.settings import Settings
from auxtap.tracer.report.entries import FileTrace
from auxtap.tracer.report.trace_report import Evidence
from auxtap.tracer.source.fragments import last_name
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.walk import find

_LOGITS_PROCESSOR = SRT_ROOT / "layers/logits_processor.py"
_COMMUNICATOR = SRT_ROOT / "layers/communicator.py"
_MOE_UTILS = SRT_ROOT / "layers/moe/utils.py"


def gather_across_ranks(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Found]:
    """A gather over the whole tensor-parallel group mixes rows of different ranks under DP attention."""
    for site in sites_of(trace, "gather"):
        if {"tensor", "model", "parallel"} <= set((site.callee or "").split("_")):
            trigger = "" if site.under is None else f"DP attention together with this branch ({site.under})"
            yield Found((evidence_of(trace, site),), trigger, settings=("enable_dp_attention", "moe_a2a_backend"))


def missed_backends(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Found]:
    """The switch for the gather names some all-to-all backends; under the others the states stay scattered."""
    source = index.source(trace.file)
    if not sites_of(trace, "gather") or _MOE_UTILS not in index.tree.files:
        return
    known = _backends(index)
    target = m.AssignTarget(target=m.Attribute(value=m.Name("self"), attr=m.Name("enable_a2a_moe")))
    for fragment, assign in find_in(source, "enable_a2a_moe", cst.Assign, m.Assign(targets=[target])):
        branch = next((item for item in fragment.ancestors_of(assign) if isinstance(item, cst.If)), None)
        if branch is None or not m.matches(assign.value, m.Name("True")):
            continue
        named = {name.removeprefix("is_") for name in names_within([branch.test]) if name.startswith("is_")}
        missed = [name for name in known if name not in named and name != "none"]
        if missed:
            lines = (evidence_at(source, fragment, branch), *known.values())
            yield Found(lines, f"moe_a2a_backend {', '.join(missed)}")


def _backends(index: ClassIndex) -> dict[str, Evidence]:
    """Return the members of the enumeration of all-to-all backends in lower case; the class's line stands for all."""
    source = index.source(_MOE_UTILS)
    names: dict[str, Evidence] = {}
    for unit in source.outline.units:
        if unit.classes == ("MoeA2ABackend",) and unit.name is None:
            fragment = source.fragment(unit)
            for assign in find(fragment.module, cst.Assign, m.Assign(value=m.SimpleString())):
                name = (last_name(assign.targets[0].target) or "").lower()
                names[name] = evidence_at(source, fragment, assign)
    return names


def scattered_dense_layers(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Found]:
    """Dense layers may leave scattered states too, and the gather is for the layers behind them only."""
    gathers = [site for site in sites_of(trace, "gather") if "first_k_dense_replace" in site.asks]
    if not gathers or _COMMUNICATOR not in index.tree.files:
        return
    source = index.source(_COMMUNICATOR)
    choice = m.IfExp(test=m.Call(func=m.Name("enable_moe_dense_fully_dp")), body=m.Attribute(attr=m.Name("SCATTERED")))
    for fragment, found in find_in(source, "enable_moe_dense_fully_dp", cst.IfExp, choice):
        yield Found((*(evidence_of(trace, site) for site in gathers), evidence_at(source, fragment, found)))
        return


def ungathered_states(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Found]:
    """The final state is gathered over the context-parallel ranks, the captured states are not."""
    for branch in trace.stage_branches:
        if branch.gathers_final_only:
            yield Found((evidence_of(trace, branch),))


def gather_before_logits(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Found]:
    """The logits processor gathers the final state, and leaves the captured ones as they came."""
    if trace.file != _LOGITS_PROCESSOR:
        return
    source = index.source(trace.file)
    for unit in source.outline.units:
        if unit.name != "forward" or unit.classes != ("LogitsProcessor",):
            continue
        fragment = source.fragment(unit)
        for assign in find(fragment.module, cst.Assign, m.Assign(value=m.Call())):
            words = set((last_name(assign.value) or "").split("_"))
            given = names_within([assign.value])
            if "gather" in words and "hidden_states" in given and not any(kind_of(n) is Kind.STATES for n in given):
                yield Found((evidence_at(source, fragment, assign),))
