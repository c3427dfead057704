"""Hazards of captured values that are not the state that they stand for."""

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from auxtap.core.source_tree import MODELS_ROOT
from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.flow.evidence import evidence_at, evidence_of, find_in
from auxtap.tracer.hazards.capturing import capturing_functions, sites_of
from auxtap.tracer.hazards.found import Found
from auxtap.tracer.hazards.settings import Settings
from auxtap.tracer.reading.heads import changed_state
from auxtap.tracer.report.entries import FileTrace
from auxtap.tracer.sites.shapes import is_logits_processor
from auxtap.tracer.source.fragments import last_name
from auxtap.tracer.source.walk import find

_SCALINGS = (b"hidden_states / ", b"hidden_states * ", b"hidden_states.float()")


def dropped_residual(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Found]:
    """The block hands its residual on beside its output, and the capture leaves it out."""
    source = index.source(trace.file)
    for fragment, function in capturing_functions(index, trace):
        pairs = m.AssignTarget(target=m.Tuple(elements=[m.Element(m.Name()), m.Element(m.Name("residual"))]))
        blocks = list(find(function.body, cst.Assign, m.Assign(targets=[pairs], value=m.Call())))
        if not blocks:
            continue
        state = blocks[0].targets[0].target
        name = last_name(state.elements[0].value) if isinstance(state, cst.Tuple) else None
        within = (fragment.unit.first_line, fragment.unit.last_line)
        sites = [
            site for site in sites_of(trace, "append") if site.value == name and within[0] <= site.line <= within[1]
        ]
        if sites and _norm_adds_residual(function, name or ""):
            lines = (*(evidence_of(trace, site) for site in sites), evidence_at(source, fragment, blocks[0]))
            yield Found(lines, default_on=True)


def _norm_adds_residual(function: cst.FunctionDef, name: str) -> bool:
    """Tell whether the norm after the blocks is given the residual too, so that the state lacks it."""
    given = [m.Arg(m.Name(name)), m.Arg(m.Name("residual"))]
    norm = m.Call(func=m.Attribute(attr=m.Name(m.MatchIfTrue(lambda word: "norm" in word))), args=given)
    return any(True for _ in find(function.body, cst.Call, norm))


def may_scale_final_state(data: bytes) -> bool:
    """Tell cheaply whether a model file can hold such a change; never a false no for the usual names."""
    return b"logits_processor(" in data and any(needle in data for needle in _SCALINGS)


def scaled_final_state(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Found]:
    """The final state that reaches the logits processor is scaled or in another type."""
    if not trace.file.is_relative_to(MODELS_ROOT):
        return
    source = index.source(trace.file)
    for fragment, call in find_in(source, "logits_processor", cst.Call):
        if is_logits_processor(call):
            function = fragment.function_of(call)
            changed = None if function is None else changed_state(function, call)
            if changed is not None:
                yield Found((evidence_at(source, fragment, changed),), default_on=True)
