"""State what a person needs to know before trusting captured states, each fact with its lines."""

from collections.abc import Iterable, Sequence

from auxtap.tracer.evidence import evidence_of
from auxtap.tracer.report import Evidence, Fact, FileTrace, Flow, LayerRule


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
            if site.role == "append":
                note = f": {site.note}" if site.note else ""
                yield Fact("captured", f"{site.scope} captures {site.value}{note}", (evidence_of(trace, site),))


def _setter_rules(layer_rules: Iterable[LayerRule]) -> Iterable[Fact]:
    for rule in layer_rules:
        if rule.offset is None:
            given = "takes no ids that this tracer understands"
        elif rule.offset == 0:
            given = "takes capture indices as they are"
        else:
            given = f"takes draft-config ids and adds {rule.offset}: id i means the input of block i + {rule.offset}"
        default = "" if rule.default is None else f"; without ids it captures {rule.default}, as capture indices"
        yield Fact("layers", f"{rule.scope} {given}{default}", rule.evidence)


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
