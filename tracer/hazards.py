"""Find configurations in which captured values are wrong or missing, from the source alone."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import libcst as cst
import libcst.matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.tracer.classes import ClassIndex
from auxtap.tracer.fragments import Fragment, SourceFile, last_name, source_of
from auxtap.tracer.layers import evidence_of
from auxtap.tracer.names import Kind, kind_of
from auxtap.tracer.report import CaptureSite, Evidence, FileTrace, Hazard
from auxtap.tracer.stage_uses import names_within
from auxtap.tracer.walk import find

SERVER_ARGS = SRT_ROOT / "server_args.py"
_FUSION_SETTING = "enable_flashinfer_allreduce_fusion"
_FUSION_OFF_FLAG = "--enforce-disable-flashinfer-allreduce-fusion"
_CONTEXT_PARALLEL_FLAGS = ("--enable-nsa-prefill-context-parallel", "--enable-prefill-context-parallel")
_FUSION_MARK = "_sglang_needs_allreduce_fusion"
_LAYERS = m.Attribute(value=m.Name("self"), attr=m.Name("layers"))


def find_hazards(index: ClassIndex, traces: Sequence[FileTrace]) -> tuple[Hazard, ...]:
    """Return the hazards of the traced files, one for each place that has it."""
    detectors: tuple[Callable[[ClassIndex, FileTrace], Iterable[Hazard]], ...] = (
        _fused_all_reduce,
        _skipped_layers,
        _gather_across_ranks,
        _ungathered_states,
    )
    return tuple(hazard for detect in detectors for trace in traces for hazard in detect(index, trace))


def _line(source: SourceFile, fragment: Fragment, node: cst.CSTNode) -> Evidence:
    line = fragment.line_of(node)
    return Evidence(source.path, line, fragment.scope_of(node), source.code_at(line))


def _sites(trace: FileTrace, role: str) -> list[CaptureSite]:
    return [site for site in trace.capture_sites if site.role == role]


def _capturing_functions(index: ClassIndex, trace: FileTrace) -> Iterator[tuple[Fragment, cst.FunctionDef]]:
    """Yield the functions that fill a list of states of their own."""
    source = index.source(trace.file)
    lines = {site.line for site in _sites(trace, "accumulator_init")}
    for unit in source.outline.units:
        if any(unit.first_line <= line <= unit.last_line for line in lines):
            fragment = source.fragment(unit)
            for function in find(fragment.module, cst.FunctionDef):
                yield fragment, function


def _skipped_layers(index: ClassIndex, trace: FileTrace) -> Iterator[Hazard]:
    """Layers given to another function, without the list of states, are never captured."""
    given = m.Arg(value=_LAYERS | m.Subscript(value=_LAYERS, slice=[m.SubscriptElement(slice=m.Slice())]))
    pattern = m.Call(args=[m.ZeroOrMore(), given, m.ZeroOrMore()])
    for fragment, function in _capturing_functions(index, trace):
        for call in find(function.body, cst.Call, pattern):
            callee = last_name(call.func) or source_of(call.func)
            handed = {kind_of(name) for name in names_within(call.args)}
            if Kind.STATES in handed or callee in {"len", "enumerate", "range", "zip"}:
                continue
            two_batch = "tbo" in callee.split("_")
            yield Hazard(
                name="two_batch_overlap" if two_batch else "skipped_layers",
                text=f"layers that {callee} runs are never captured: it does not get the list of states",
                trigger="two-batch overlap" if two_batch else "see the condition around the call",
                avoid="start without --enable-two-batch-overlap" if two_batch else "no setting is known",
                evidence=(_line(index.source(trace.file), fragment, call),),
            )


def _gather_across_ranks(index: ClassIndex, trace: FileTrace) -> Iterator[Hazard]:
    for site in _sites(trace, "gather"):
        callee = (site.note or "").split(" ")[0]
        if {"tensor", "model", "parallel"} <= set(callee.split("_")):
            condition = (site.note or "").partition("; ")[2]
            yield Hazard(
                name="all_to_all_gather",
                text=f"{callee} gathers over the whole tensor-parallel group: with DP attention it mixes the rows "
                "of different DP ranks",
                trigger=f"DP attention together with this branch ({condition})" if condition else "DP attention",
                avoid="do not combine an all-to-all MoE backend with DP attention",
                evidence=(evidence_of(trace, site),),
            )


def _ungathered_states(index: ClassIndex, trace: FileTrace) -> Iterator[Hazard]:
    for branch in trace.stage_branches:
        note = branch.note or ""
        if branch.role == "last_stage_only" and "the aux states are not gathered" in note:
            yield Hazard(
                name="context_parallel",
                text="the final state is gathered over the context-parallel ranks, the captured states are not",
                trigger="prefill context parallel",
                avoid=_context_parallel_avoidance(index),
                evidence=(Evidence(trace.file, branch.line, branch.scope, branch.code),),
            )


def _context_parallel_avoidance(index: ClassIndex) -> str:
    flags = [flag for flag in _CONTEXT_PARALLEL_FLAGS if _knows_flag(index, flag)]
    return f"start without {' or '.join(flags)}" if flags else "start without context parallelism"


def _knows_flag(index: ClassIndex, flag: str) -> bool:
    return f'"{flag}"'.encode() in index.tree.files.get(SERVER_ARGS, b"")


def _fused_all_reduce(index: ClassIndex, trace: FileTrace) -> Iterator[Hazard]:
    """A layer may leave its all-reduce to the next one; what is appended between the two is a partial sum."""
    source = index.source(trace.file)
    target = m.AssignTarget(target=m.Attribute(attr=m.Name(_FUSION_MARK)))
    appends = [site for site in _sites(trace, "append") if (site.note or "").startswith("input of block")]
    for fragment in source.fragments_with(_FUSION_MARK) if appends else ():
        for mark in find(fragment.module, cst.Assign, m.Assign(targets=[target], value=m.Name("True"))):
            limit = _fusion_limit(index)
            auto, architectures = _fusion_default(index)
            evidence = [_line(source, fragment, mark), *(evidence_of(trace, site) for site in appends)]
            evidence.extend(item for item in (limit, auto) if item is not None)
            yield Hazard(
                name="fused_all_reduce",
                text="at the append the all-reduce of the block before may still be missing: short prompts come "
                "out wrong and long ones right",
                trigger=_fusion_trigger(limit, architectures),
                avoid=_fusion_avoidance(index),
                evidence=tuple(evidence),
            )
            return


def _fusion_trigger(limit: Evidence | None, architectures: list[str]) -> str:
    trigger = f"{_FUSION_SETTING} with tensor parallelism"
    if limit is not None:
        trigger += f", forwards of at most {limit.code.partition('=')[2].strip()} tokens"
    if architectures:
        trigger += f"; the server turns it on by itself, where the hardware has it, for {', '.join(architectures)}"
    return trigger


def _fusion_avoidance(index: ClassIndex) -> str:
    if _knows_flag(index, _FUSION_OFF_FLAG):
        return _FUSION_OFF_FLAG
    return f"no flag in this release: clear {_FUSION_SETTING} in the server arguments once they are final"


def _fusion_limit(index: ClassIndex) -> Evidence | None:
    """Return the line that sets the largest forward for which the all-reduce is fused."""
    path = SRT_ROOT / "layers/communicator.py"
    if path not in index.tree.files or _FUSION_SETTING.encode() not in index.tree.files[path]:
        return None
    source = index.source(path)
    target = m.ComparisonTarget(operator=m.LessThanEqual(), comparator=m.Name())
    for fragment in source.fragments_with(_FUSION_SETTING):
        for bound in find(fragment.module, cst.ComparisonTarget, target):
            return _module_constant(source, source_of(bound.comparator))
    return None


def _module_constant(source: SourceFile, name: str) -> Evidence | None:
    pattern = m.Assign(targets=[m.AssignTarget(target=m.Name(name))], value=m.Integer())
    for fragment in source.fragments_with(name):
        for assign in find(fragment.module, cst.Assign, pattern):
            return _line(source, fragment, assign)
    return None


def _fusion_default(index: ClassIndex) -> tuple[Evidence | None, list[str]]:
    """Return the line at which the server turns the fusion on by itself, and for which architectures."""
    data = index.tree.files.get(SERVER_ARGS, b"")
    if _FUSION_SETTING.encode() not in data:
        return None, []
    source = index.source(SERVER_ARGS)
    target = m.AssignTarget(target=m.Attribute(value=m.Name("self"), attr=m.Name(_FUSION_SETTING)))
    listed = m.ComparisonTarget(operator=m.In(), comparator=m.List() | m.Set() | m.Tuple())
    for fragment in source.fragments_with(f"self.{_FUSION_SETTING} = "):
        for assign in find(fragment.module, cst.Assign, m.Assign(targets=[target], value=m.Name("True"))):
            branch = next((item for item in fragment.ancestors_of(assign) if isinstance(item, cst.If)), None)
            if branch is not None:
                lists = find(branch.test, cst.ComparisonTarget, listed)
                names = (item for found in lists for item in find(found.comparator, cst.SimpleString))
                return _line(source, fragment, assign), [str(item.raw_value) for item in names]
    return None, []
