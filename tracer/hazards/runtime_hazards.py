"""Hazards of the server around the models: what it leaves out, splits, replays, repeats or runs beside."""

from collections.abc import Iterator
from pathlib import PurePosixPath

import libcst as cst
import libcst.matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.flow.evidence import evidence_at, find_in
from auxtap.tracer.hazards.found import Found
from auxtap.tracer.hazards.settings import Setting, Settings
from auxtap.tracer.report.trace_report import Evidence
from auxtap.tracer.source.walk import NodeT, find

_MANAGERS = SRT_ROOT / "managers"
_SCHEDULER = _MANAGERS / "scheduler.py"
_RUNNERS = (
    SRT_ROOT / "model_executor/model_runner.py",
    SRT_ROOT / "model_executor/model_runner_components/cuda_graph_setup.py",
)
_KTRANSFORMERS = SRT_ROOT / "layers/moe/kt_ep_wrapper.py"
_PREFILL_RUNNERS = m.Name("PiecewiseCudaGraphRunner") | m.Name("PrefillCudaGraphRunner")


def _first(
    index: ClassIndex, paths: tuple[PurePosixPath, ...], text: str, kind: type[NodeT], pattern: m.BaseMatcherNode
) -> Evidence | None:
    for path in paths:
        if text.encode() in index.tree.files.get(path, b""):
            source = index.source(path)
            for fragment, node in find_in(source, text, kind, pattern):
                return evidence_at(source, fragment, node)
    return None


def _with(evidence: Evidence, *settings: Setting | None) -> tuple[Evidence, ...]:
    return (evidence, *(setting.evidence for setting in settings if setting is not None))


def prefix_cache(index: ClassIndex, settings: Settings) -> Iterator[Found]:
    """Rows that the cache already has are not computed, so nothing captures them."""
    paths = (_MANAGERS / "schedule_batch.py", *sorted(p for p in index.tree.files if p.parent == _MANAGERS))
    matching = m.Call(func=m.Attribute(attr=m.Name("match_prefix")))
    evidence = _first(index, paths, ".match_prefix(", cst.Call, matching)
    off = settings.find("disable_radix_cache")
    if evidence is None:
        return
    yield Found(_with(evidence, off), default_on=off is not None and off.default == "False")


def chunked_prefill(index: ClassIndex, settings: Settings) -> Iterator[Found]:
    """A long prompt goes through in pieces, each with states of its own."""
    target = m.AssignTarget(target=m.Attribute(value=m.Name("self"), attr=m.Name("new_chunked_req")))
    given = m.Assign(targets=[target], value=m.Name(m.MatchIfTrue(lambda name: name != "None")))
    evidence = _first(index, (_MANAGERS / "schedule_policy.py",), "self.new_chunked_req = ", cst.Assign, given)
    size = settings.find("chunked_prefill_size")
    if evidence is None:
        return
    yield Found(_with(evidence, size), settings=("chunked_prefill_size",), default_on=True)


def recorded_prefill(index: ClassIndex, settings: Settings) -> Iterator[Found]:
    """Python within a recorded graph does not run again when the graph is replayed."""
    making = m.Call(func=_PREFILL_RUNNERS)
    evidence = next(
        (
            found
            for text in ("PiecewiseCudaGraphRunner(", "PrefillCudaGraphRunner(")
            if (found := _first(index, _RUNNERS, text, cst.Call, making)) is not None
        ),
        None,
    )
    if evidence is None:
        return
    off = settings.option("disable_prefill_cuda_graph", "disable_piecewise_cuda_graph")
    on = settings.find("enable_piecewise_cuda_graph")
    decisive = off or on
    yield Found(
        _with(evidence, decisive),
        settings=() if decisive is None else (decisive.name,),
        default_on=off is not None and off.default == "False",
        hardware="CUDA",
    )


def retraction(index: ClassIndex, settings: Settings) -> Iterator[Found]:
    """Under memory pressure a request is taken back and computed again later."""
    call = m.Call(func=m.Attribute(attr=m.Name("retract_decode")))
    evidence = _first(index, (_SCHEDULER,), ".retract_decode(", cst.Call, call)
    if evidence is not None:
        yield Found((evidence,), default_on=True)


def draft_worker(index: ClassIndex, settings: Settings) -> Iterator[Found]:
    """A draft model has a logits processor of its own, which sees states of its own."""
    if b"self.draft_worker = " not in index.tree.files.get(_SCHEDULER, b""):
        return
    target = m.AssignTarget(target=m.Attribute(value=m.Name("self"), attr=m.Name("draft_worker")))
    making = m.Assign(targets=[target], value=m.Call())
    source = index.source(_SCHEDULER)
    for fragment in source.fragments_with("self.draft_worker = "):
        for assign in find(fragment.module, cst.Assign, making):
            setting = settings.find("speculative_algorithm")
            yield Found(
                _with(evidence_at(source, fragment, assign), setting),
                default_on=setting is not None and setting.default not in (None, "None"),
            )
            return


def deferred_experts(index: ClassIndex, settings: Settings) -> Iterator[Found]:
    """Experts on the CPU may hand in their part of a state one block later."""
    handed = m.Arg(keyword=m.Name("max_deferred_experts_per_token"))
    evidence = _first(index, (_KTRANSFORMERS,), "max_deferred_experts_per_token=", cst.Arg, handed)
    if evidence is not None:
        yield Found(_with(evidence, settings.find("kt_max_deferred_experts_per_token")))
