"""Find configurations in which captured values are wrong or missing, from the source alone."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.hazards import (
    fusion_hazard,
    model_hazards,
    rank_hazards,
    runtime_hazards,
    storage_hazard,
    value_hazards,
)
from auxtap.tracer.hazards.settings import Settings
from auxtap.tracer.report.entries import FileTrace
from auxtap.tracer.report.trace_report import Hazard

_OfFile = Callable[[ClassIndex, Settings, FileTrace], Iterable[Hazard]]
_OfTree = Callable[[ClassIndex, Settings], Iterable[Hazard]]

# Hazards whose evidence is a call that runs layers past the capture.
SKIPPING = ("two_batch_overlap", "skipped_layers")

_FILE_DETECTORS: tuple[_OfFile, ...] = (
    fusion_hazard.fused_all_reduce,
    model_hazards.skipped_layers,
    rank_hazards.gather_across_ranks,
    rank_hazards.missed_backends,
    rank_hazards.scattered_dense_layers,
    rank_hazards.ungathered_states,
    model_hazards.unpack_trap,
    storage_hazard.reused_storage,
    model_hazards.first_layer,
    value_hazards.dropped_residual,
    value_hazards.scaled_final_state,
    rank_hazards.gather_before_logits,
    model_hazards.byte_order_mark,
)
_TREE_DETECTORS: tuple[_OfTree, ...] = (
    runtime_hazards.prefix_cache,
    runtime_hazards.chunked_prefill,
    runtime_hazards.recorded_prefill,
    runtime_hazards.retraction,
    runtime_hazards.draft_worker,
)


def find_hazards(index: ClassIndex, traces: Sequence[FileTrace], *, everything: bool = False) -> tuple[Hazard, ...]:
    """Return the hazards of the traced files and, where one of them captures, of the server around them.

    Equal hazards of several files are one entry with several lines of evidence. With `everything` the models that
    hold no capture code are looked at too: their final state can be taken all the same.
    """
    settings = Settings(index.tree)
    found = [hazard for detect in _FILE_DETECTORS for trace in traces for hazard in detect(index, settings, trace)]
    if everything:
        known = {trace.file for trace in traces}
        others = (path for path in index.model_files if path not in known)
        for path in others:
            found += model_hazards.byte_order_mark(index, settings, FileTrace(path, (), ()))
            if value_hazards.may_scale_final_state(index.tree.files[path]):
                found += value_hazards.scaled_final_state(index, settings, FileTrace(path, (), ()))
    if any(site.role == "accumulator_init" for trace in traces for site in trace.capture_sites):
        found += [hazard for detect in _TREE_DETECTORS for hazard in detect(index, settings)]
    return _merged(found)


def _merged(hazards: Iterable[Hazard]) -> tuple[Hazard, ...]:
    merged: dict[Hazard, Hazard] = {}
    for hazard in hazards:
        key = replace(hazard, evidence=())
        known = merged.get(key)
        lines = (*(known.evidence if known is not None else ()), *hazard.evidence)
        merged[key] = replace(hazard, evidence=tuple(dict.fromkeys(lines)))
    return tuple(merged.values())
