"""State what a person needs to know before trusting captured states, each fact with its lines."""

from collections.abc import Iterable, Sequence

from auxtap.core.draft_ids import OTHERWISE, OffsetRule
from auxtap.tracer.flow.evidence import evidence_of
from auxtap.tracer.report.entries import FileTrace
from auxtap.tracer.report.trace_report import Evidence, Fact, Flow, LayerRule

_HANDED = ("collector_hand_in", "boundary_hand_in")
_CAPTURES = ("append", "append_in_place", *_HANDED)


def find_facts(
    traces: Sequence[FileTrace], flows: Sequence[Flow], layer_rules: Sequence[LayerRule]
) -> tuple[Fact, ...]:
    """Return the facts in reading order: what is captured, which layers, where it is lost, what is missing."""
    return (
        *_capture_points(traces),
        *_setter_rules(layer_rules),
        *_stage_drops(traces),
        *_selection_gates(traces),
        *_breaks(flows),
    )


def _capture_points(traces: Iterable[FileTrace]) -> Iterable[Fact]:
    for trace in traces:
        for site in trace.capture_sites:
            if site.role in _CAPTURES:
                note = f": {site.note}" if site.note else ""
                how = f"captures {site.value}" if site.role not in _HANDED else f"hands {site.value} to {site.to}"
                yield Fact("captured", f"{site.scope} {how}{note}", (evidence_of(trace, site),))


def _setter_rules(layer_rules: Iterable[LayerRule]) -> Iterable[Fact]:
    for rule in layer_rules:
        parts = [_offset_words(item) for item in rule.offsets] or ["takes no ids that this tracer understands"]
        text = f"{rule.scope} {'; '.join(parts)}"
        if rule.side is not None and rule.shift is not None:
            text += f"; an entry j of the list is capture index {_sum('j', rule.shift)}"
        if rule.default is not None:
            text += f"; without ids the list is {rule.default}"
        if rule.reaches_end:
            text += "; the state after the last block can be chosen"
        yield Fact("layers", text, rule.evidence)


def _offset_words(rule: OffsetRule) -> str:
    if rule.offset is None:
        words = "does with the ids what this tracer does not understand"
    elif rule.offset == 0:
        words = "takes the ids as they are"
    else:
        words = f"adds {rule.offset} to each id"
    if rule.condition is None:
        return words
    return f"{words} {rule.condition}" if rule.condition == OTHERWISE else f"{words} if {rule.condition}"


def _sum(name: str, number: int) -> str:
    return name if number == 0 else f"{name} {'+' if number > 0 else '-'} {abs(number)}"


def _stage_drops(traces: Iterable[FileTrace]) -> Iterable[Fact]:
    for trace in traces:
        for branch in trace.stage_branches:
            if branch.role == "stage_exit" and branch.drops_aux:
                text = (
                    f"{branch.scope}: a stage that is not the last returns {branch.returns} and drops what it captured"
                )
                yield Fact("dropped", text, (evidence_of(trace, branch),))


def _selection_gates(traces: Iterable[FileTrace]) -> Iterable[Fact]:
    for trace in traces:
        for branch in trace.stage_branches:
            if branch.role == "selection_gate" and branch.form == "early_return":
                text = f"{branch.scope} returns early on every stage but the last, so only that stage captures"
                yield Fact("gated", text, (evidence_of(trace, branch),))


def _breaks(flows: Iterable[Flow]) -> Iterable[Fact]:
    for flow in flows:
        first = flow.links[0]
        for reason in flow.breaks:
            yield Fact("broken", reason, (Evidence(first.file, first.line, first.name, f"class {first.name}"),))
