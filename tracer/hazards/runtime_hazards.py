"""Hazards of the server around the models: what it leaves out, splits, replays, repeats or runs beside."""

from collections.abc import Iterator
from pathlib import PurePosixPath

import libcst as cst
import libcst.matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.flow.evidence import evidence_at, find_in
from auxtap.tracer.hazards.settings import Setting, Settings
from auxtap.tracer.report.trace_report import Evidence, Hazard
from auxtap.tracer.source.walk import NodeT, find

_MANAGERS = SRT_ROOT / "managers"
_SCHEDULER = _MANAGERS / "scheduler.py"
_RUNNERS = (
    SRT_ROOT / "model_executor/model_runner.py",
    SRT_ROOT / "model_executor/model_runner_components/cuda_graph_setup.py",
)
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


def prefix_cache(index: ClassIndex, settings: Settings) -> Iterator[Hazard]:
    """Rows that the cache already has are not computed, so nothing captures them."""
    paths = (_MANAGERS / "schedule_batch.py", *sorted(p for p in index.tree.files if p.parent == _MANAGERS))
    matching = m.Call(func=m.Attribute(attr=m.Name("match_prefix")))
    evidence = _first(index, paths, ".match_prefix(", cst.Call, matching)
    off = settings.find("disable_radix_cache")
    if evidence is None:
        return
    yield Hazard(
        name="prefix_cache",
        text="rows of a prompt that the prefix cache has are not computed again and are missing from the states",
        trigger="a prompt that begins like an earlier one",
        settings=("disable_radix_cache",),
        default_on=off is not None and off.default == "False",
        avoid="--disable-radix-cache, or an extra_key of its own for each request; check rows against tokens",
        evidence=_with(evidence, off),
    )


def chunked_prefill(index: ClassIndex, settings: Settings) -> Iterator[Hazard]:
    """A long prompt goes through in pieces, each with states of its own."""
    target = m.AssignTarget(target=m.Attribute(value=m.Name("self"), attr=m.Name("new_chunked_req")))
    given = m.Assign(targets=[target], value=m.Name(m.MatchIfTrue(lambda name: name != "None")))
    evidence = _first(index, (_MANAGERS / "schedule_policy.py",), "self.new_chunked_req = ", cst.Assign, given)
    size = settings.find("chunked_prefill_size")
    if evidence is None:
        return
    yield Hazard(
        name="chunked_prefill",
        text="a long prompt is computed in pieces: each forward has the states of its own rows only",
        trigger="prompts longer than a chunk",
        settings=("chunked_prefill_size",),
        default_on=True,
        avoid="join the pieces by their offset, or --chunked-prefill-size -1",
        evidence=_with(evidence, size),
    )


def recorded_prefill(index: ClassIndex, settings: Settings) -> Iterator[Hazard]:
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
    avoid = "start without --enable-piecewise-cuda-graph" if off is None else off.flag
    decisive = off or on
    yield Hazard(
        name="recorded_prefill",
        text="prefill may be replayed from a recorded graph: Python in the layer loop does not run then",
        trigger="prefill CUDA graphs",
        settings=() if decisive is None else (decisive.name,),
        default_on=off is not None and off.default == "False",
        hardware="CUDA",
        avoid=avoid,
        evidence=_with(evidence, decisive),
    )


def retraction(index: ClassIndex, settings: Settings) -> Iterator[Hazard]:
    """Under memory pressure a request is taken back and computed again later."""
    call = m.Call(func=m.Attribute(attr=m.Name("retract_decode")))
    evidence = _first(index, (_SCHEDULER,), ".retract_decode(", cst.Call, call)
    if evidence is not None:
        yield Hazard(
            name="retraction",
            text="a request that is taken back runs again later: its rows come twice",
            trigger="too little memory for the running requests",
            default_on=True,
            avoid="make writes idempotent by request and offset",
            evidence=(evidence,),
        )


def draft_worker(index: ClassIndex, settings: Settings) -> Iterator[Hazard]:
    """A draft model has a logits processor of its own, which sees states of its own."""
    if b"self.draft_worker = " not in index.tree.files.get(_SCHEDULER, b""):
        return
    target = m.AssignTarget(target=m.Attribute(value=m.Name("self"), attr=m.Name("draft_worker")))
    making = m.Assign(targets=[target], value=m.Call())
    source = index.source(_SCHEDULER)
    for fragment in source.fragments_with("self.draft_worker = "):
        for assign in find(fragment.module, cst.Assign, making):
            setting = settings.find("speculative_algorithm")
            yield Hazard(
                name="draft_worker",
                text="a draft model runs beside the target and hands its own states to a logits processor too",
                trigger="speculative decoding",
                settings=("speculative_algorithm",),
                default_on=setting is not None and setting.default not in (None, "None"),
                avoid="start without --speculative-algorithm",
                evidence=_with(evidence_at(source, fragment, assign), setting),
            )
            return
