"""Find configurations in which captured values are wrong or missing, from the source alone.

What a hazard is, why it is one and what is done about it says its row in the table; here is how the source shows it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from auxtap.core.hazards.hazard_table import all_hazards, hazard
from auxtap.core.hazards.row import Hazard as Row
from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.hazards import (
    fusion_hazard,
    model_hazards,
    rank_hazards,
    runtime_hazards,
    storage_hazard,
    value_hazards,
)
from auxtap.tracer.hazards.found import Found
from auxtap.tracer.hazards.settings import Setting, Settings
from auxtap.tracer.report.entries import FileTrace
from auxtap.tracer.report.trace_report import Hazard

_OfFile = Callable[[ClassIndex, Settings, FileTrace], Iterable[Found]]
_OfTree = Callable[[ClassIndex, Settings], Iterable[Found]]

# Hazards whose evidence is a call that runs layers past the capture.
SKIPPING = ("two_batch_overlap", "skipped_layers")

# Finders by the names of their hazards, in the order of the report. A row that has none shows by its arguments.
FILE_FINDERS: Mapping[str, _OfFile] = {
    "fused_all_reduce": fusion_hazard.fused_all_reduce,
    "two_batch_overlap": model_hazards.two_batch_overlap,
    "skipped_layers": model_hazards.skipped_layers,
    "all_to_all_gather": rank_hazards.gather_across_ranks,
    "unscattered_backend": rank_hazards.missed_backends,
    "scattered_dense_layers": rank_hazards.scattered_dense_layers,
    "context_parallel": rank_hazards.ungathered_states,
    "unpack_trap": model_hazards.unpack_trap,
    "reused_storage": storage_hazard.reused_storage,
    "first_layer": model_hazards.first_layer,
    "dropped_residual": value_hazards.dropped_residual,
    "scaled_final_state": value_hazards.scaled_final_state,
    "gather_before_logits": rank_hazards.gather_before_logits,
    "byte_order_mark": model_hazards.byte_order_mark,
}
TREE_FINDERS: Mapping[str, _OfTree] = {
    "prefix_cache": runtime_hazards.prefix_cache,
    "chunked_prefill": runtime_hazards.chunked_prefill,
    "recorded_prefill": runtime_hazards.recorded_prefill,
    "retraction": runtime_hazards.retraction,
    "draft_worker": runtime_hazards.draft_worker,
    "deferred_experts": runtime_hazards.deferred_experts,
}


def find_hazards(index: ClassIndex, traces: Sequence[FileTrace], *, everything: bool = False) -> tuple[Hazard, ...]:
    """Return the hazards of the traced files and, where one of them captures, of the server around them.

    Equal hazards of several files are one entry with several lines of evidence. With `everything` the models that
    hold no capture code are looked at too: their final state can be taken all the same.
    """
    settings = Settings(index.tree)
    found = [
        _hazard(hazard(name), settings, item)
        for name, find in FILE_FINDERS.items()
        for trace in traces
        for item in find(index, settings, trace)
    ]
    if everything:
        known = {trace.file for trace in traces}
        for path in (path for path in index.model_files if path not in known):
            found += _of_other_model(index, settings, FileTrace(path, (), ()))
    if any(site.role == "accumulator_init" for trace in traces for site in trace.capture_sites):
        found += [
            _hazard(hazard(name), settings, item)
            for name, find_in_tree in TREE_FINDERS.items()
            for item in find_in_tree(index, settings)
        ]
        found += _by_arguments(settings)
    return _merged(found)


def _of_other_model(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Hazard]:
    for item in model_hazards.byte_order_mark(index, settings, trace):
        yield _hazard(hazard("byte_order_mark"), settings, item)
    if value_hazards.may_scale_final_state(index.tree.files[trace.file]):
        for item in value_hazards.scaled_final_state(index, settings, trace):
            yield _hazard(hazard("scaled_final_state"), settings, item)


def _by_arguments(settings: Settings) -> Iterator[Hazard]:
    """Yield the hazards that show by the definitions of their arguments alone."""
    for row in all_hazards():
        if row.name not in FILE_FINDERS and row.name not in TREE_FINDERS:
            lines = tuple(setting.evidence for setting in _known(row, settings))
            if lines:
                yield _hazard(row, settings, Found(lines))


def _known(row: Row, settings: Settings) -> list[Setting]:
    """Return the settings of a row that this tree has, those that stand alone or with all that go with them."""
    groups = [[switch.argument for switch in group] for group in row.refused]
    groups += [[needed.argument] for needed in row.needed]
    groups += [[cleared.argument] for cleared in row.cleared]
    complete = [group for group in groups if all(settings.find(name) is not None for name in group)]
    names = dict.fromkeys(name for group in complete for name in group)
    return [found for name in names if (found := settings.find(name)) is not None]


def _hazard(row: Row, settings: Settings, found: Found) -> Hazard:
    return Hazard(
        name=row.name,
        text=row.reason,
        trigger=found.trigger or row.trigger,
        settings=found.settings or tuple(setting.name for setting in _known(row, settings)),
        default_on=found.default_on,
        hardware=found.hardware,
        avoid=_remedy(row, settings),
        evidence=found.evidence,
    )


def _remedy(row: Row, settings: Settings) -> str:
    """Return the switch that keeps a hazard away in this release, else what must not be switched on."""
    known = {setting.name for setting in _known(row, settings)}
    needed = [each.option for each in row.needed if each.argument in known]
    cleared = [each.argument for each in row.cleared if each.argument in known]
    refused = [" with ".join(switch.words for switch in group) for group in row.refused]
    refused = [
        words for words, group in zip(refused, row.refused, strict=True) if {each.argument for each in group} <= known
    ]
    if needed:
        return " and ".join(needed)
    if cleared:
        return f"no flag in this release: clear {cleared[0]} in the server arguments once they are final"
    if refused:
        return f"start without {' or '.join(refused)}"
    return row.remedy or f"no setting is known: {row.trigger}"


def _merged(hazards: Iterable[Hazard]) -> tuple[Hazard, ...]:
    merged: dict[Hazard, Hazard] = {}
    for each in hazards:
        key = replace(each, evidence=())
        known = merged.get(key)
        lines = (*(known.evidence if known is not None else ()), *each.evidence)
        merged[key] = replace(each, evidence=tuple(dict.fromkeys(lines)))
    return tuple(merged.values())
