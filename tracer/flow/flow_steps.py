"""Follow a captured state: from the choice of layers to the logits processor, and from there to the answer."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath

import libcst as cst
import libcst.matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.flow.evidence import evidence_at, evidence_of, find_in
from auxtap.tracer.report.entries import CaptureSite, FileTrace, StageBranch
from auxtap.tracer.report.trace_report import FlowLink, FlowStep
from auxtap.tracer.source.walk import NodeT

CAPTURES = ("append", "append_in_place", "collector_hand_in", "boundary_hand_in")
_LOGITS_PROCESSOR = SRT_ROOT / "layers/logits_processor.py"
_IN_LAYER = (SRT_ROOT / "layers/communicator.py", SRT_ROOT / "layers/layer_boundary/stage.py")
_MANAGERS = SRT_ROOT / "managers"

_KINDS: dict[str, str] = {
    "layers_set": "select",
    "setter_call": "select",
    "layer_mark": "select",
    "selection_gate": "select",
    "flag_set": "switch",
    "accumulator_init": "collect",
    "layer_test": "choose",
    "gather": "gather",
    "append": "capture",
    "append_in_place": "capture",
    "collector_hand_in": "capture",
    "boundary_hand_in": "capture",
    "capture_gate": "capture",
    "stage_carry": "carry",
    "stage_exit": "exit",
    "empty_test": "return",
    "return_pair": "return",
    "unpack": "unpack",
    "hand_over": "hand_over",
}
_HANDED_IN = ("collector_hand_in", "boundary_hand_in")
_CONSUMED = {"prune": "pick", "join": "join", "store": "keep", "count": "check"}
_ORDER = tuple(dict.fromkeys((*_KINDS.values(), *_CONSUMED.values())))


def find_steps(
    index: ClassIndex, links: Sequence[FlowLink], trace: Callable[[PurePosixPath], FileTrace]
) -> tuple[FlowStep, ...]:
    """Return what happens to a state of these classes, in the order in which it happens."""
    steps: list[FlowStep] = []
    handed_in = False
    for link in reversed(links):
        found = trace(link.file)
        entries: list[CaptureSite | StageBranch] = [*found.capture_sites, *found.stage_branches]
        for entry in sorted(entries, key=lambda entry: entry.line):
            if entry.role in _KINDS and entry.scope.split(".")[0] == link.name:
                steps.append(FlowStep(_KINDS[entry.role], _words(entry), evidence_of(found, entry)))
                handed_in |= entry.role in _HANDED_IN
    if handed_in:
        steps.extend(_in_layer(index, trace))
    if any(step.kind == "hand_over" for step in steps):
        steps.extend(_consumed(index, trace))
    order = {kind: number for number, kind in enumerate(_ORDER)}
    return tuple(dict.fromkeys(sorted(steps, key=lambda step: order[step.kind])))


def _words(entry: CaptureSite | StageBranch) -> str:
    if isinstance(entry, StageBranch):
        if entry.role == "stage_exit":
            fate = {True: "drops what it captured", False: "hands on what it captured", None: "has captured nothing"}
            return f"a stage that is not the last returns {entry.returns} and {fate[entry.drops_aux]}"
        if entry.role == "selection_gate":
            return "only the last stage chooses layers"
        return "joins the captured states on this kind of stage only"
    if entry.role in _HANDED_IN:
        return f"hands the collector to {entry.to}: {entry.note or 'deeper'}"
    if entry.role in ("append", "append_in_place"):
        return f"captures {entry.value}{': ' + entry.note if entry.note else ''}"
    condition = f" if {entry.condition}" if entry.condition not in (None, "otherwise") else ""
    plain = {
        "layers_set": f"layers become {entry.value}{condition}",
        "setter_call": f"passes {entry.value} on to {entry.to}{condition}",
        "layer_mark": "marks the layers",
        "flag_set": f"switches capture {'off' if entry.value == 'False' else 'on'}",
        "accumulator_init": f"begins an empty {'list' if entry.value is None else 'collector'}",
        "layer_test": "asks whether this layer is chosen",
        "gather": entry.note or "gathers the state",
        "stage_carry": f"gives the states to the next stage in {entry.to}",
        "empty_test": "returns a plain tensor when nothing was captured",
        "return_pair": "returns the final state with the captured ones",
        "unpack": "takes the pair apart",
        "hand_over": f"hands the states to {entry.to}",
    }
    return plain[entry.role]


def _in_layer(index: ClassIndex, trace: Callable[[PurePosixPath], FileTrace]) -> Iterator[FlowStep]:
    for path in _IN_LAYER:
        if path in index.tree.files:
            found = trace(path)
            for site in found.capture_sites:
                if site.role == "append":
                    yield FlowStep("capture", f"inside the layer, captures {site.value}", evidence_of(found, site))


def _consumed(index: ClassIndex, trace: Callable[[PurePosixPath], FileTrace]) -> Iterator[FlowStep]:
    if _LOGITS_PROCESSOR not in index.tree.files:
        return
    found = trace(_LOGITS_PROCESSOR)
    words = {
        "prune": "picks rows",
        "join": "joins the states along the hidden dimension",
        "store": "keeps the states",
        "count": "counts the states",
    }
    for site in found.capture_sites:
        if site.role in _CONSUMED:
            yield FlowStep(_CONSUMED[site.role], f"{words[site.role]}: {site.code}", evidence_of(found, site))


_STATES = m.Attribute(attr=m.Name("hidden_states"))
_OF_OUTPUT = m.Attribute(value=m.Name("logits_output") | m.Attribute(attr=m.Name("logits_output")), attr=_STATES.attr)


def find_delivery(index: ClassIndex) -> tuple[FlowStep, ...]:
    """Return what the server does with what the logits processor gives back, up to the answer over HTTP."""
    request = m.Attribute(value=m.Name("req") | m.Attribute(attr=m.Name("req")), attr=m.Name("hidden_states"))
    output = m.Call(
        func=m.Name("LogitsProcessorOutput"),
        args=[m.ZeroOrMore(), m.Arg(keyword=m.Name("hidden_states")), m.ZeroOrMore()],
    )
    moved = m.Assign(targets=[m.AssignTarget(target=_OF_OUTPUT)])
    kept = m.Call(func=m.Attribute(value=request, attr=m.Name("append") | m.Name("extend")))
    answer = m.AssignTarget(target=m.Subscript(slice=[m.SubscriptElement(m.Index(m.SimpleString('"hidden_states"')))]))
    managers = tuple(sorted(path for path in index.tree.files if path.is_relative_to(_MANAGERS)))
    return (
        *_steps(index, (_LOGITS_PROCESSOR,), "output", "LogitsProcessorOutput(", cst.Call, output),
        *_steps(index, managers, "to_cpu", "logits_output.hidden_states = ", cst.Assign, moved),
        *_steps(index, managers, "per_request", "req.hidden_states.", cst.Call, kept),
        *_steps(index, managers, "answer", '["hidden_states"] = ', cst.AssignTarget, answer),
    )


_DELIVERY_WORDS = {
    "output": "the states become the hidden states of the logits processor's output",
    "to_cpu": "the scheduler's output is copied to the CPU",
    "per_request": "each request gets its own rows, as Python lists",
    "answer": "the lists go into the answer as meta_info",
}


def _steps(
    index: ClassIndex,
    paths: tuple[PurePosixPath, ...],
    kind: str,
    text: str,
    node_type: type[NodeT],
    pattern: m.BaseMatcherNode,
) -> Iterator[FlowStep]:
    for path in paths:
        if text.encode() in index.tree.files.get(path, b""):
            source = index.source(path)
            for fragment, node in find_in(source, text, node_type, pattern):
                yield FlowStep(kind, _DELIVERY_WORDS[kind], evidence_at(source, fragment, node))
