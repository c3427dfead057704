"""Hazards that stand in a model's own file, or in the logits processor."""

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.tracer.classes import MODELS_ROOT, ClassIndex
from auxtap.tracer.evidence import evidence_at, evidence_of, find_in
from auxtap.tracer.fragments import Fragment, last_name, source_of
from auxtap.tracer.names import Kind, kind_of
from auxtap.tracer.report import CaptureSite, Evidence, FileTrace, Hazard
from auxtap.tracer.settings import Settings
from auxtap.tracer.shapes import choices_of, is_kind, is_logits_processor
from auxtap.tracer.stage_uses import names_within
from auxtap.tracer.walk import find

_LAYERS = m.Attribute(value=m.Name("self"), attr=m.Name("layers"))
_COUNTING = frozenset({"len", "enumerate", "range", "zip"})
_LOGITS_PROCESSOR = SRT_ROOT / "layers/logits_processor.py"
_COMMUNICATOR = SRT_ROOT / "layers/communicator.py"
_MOE_UTILS = SRT_ROOT / "layers/moe/utils.py"
_SCALINGS = (b"hidden_states / ", b"hidden_states * ", b"hidden_states.float()")
_CONTEXT_PARALLEL = (
    "enable_nsa_prefill_context_parallel",
    "enable_dsa_prefill_context_parallel",
    "enable_prefill_context_parallel",
    "attn_cp_size",
)


def sites_of(trace: FileTrace, *roles: str) -> list[CaptureSite]:
    """Return the sites of these roles."""
    return [site for site in trace.capture_sites if site.role in roles]


def _capturing_functions(index: ClassIndex, trace: FileTrace) -> Iterator[tuple[Fragment, cst.FunctionDef]]:
    """Yield the functions that fill a list of states of their own."""
    source = index.source(trace.file)
    lines = {site.line for site in sites_of(trace, "accumulator_init")}
    for unit in source.outline.units:
        if any(unit.first_line <= line <= unit.last_line for line in lines):
            fragment = source.fragment(unit)
            for function in find(fragment.module, cst.FunctionDef):
                yield fragment, function


def skipped_layers(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Hazard]:
    """Layers given to another function, without the list of states, are never captured."""
    given = m.Arg(value=_LAYERS | m.Subscript(value=_LAYERS, slice=[m.SubscriptElement(slice=m.Slice())]))
    pattern = m.Call(args=[m.ZeroOrMore(), given, m.ZeroOrMore()])
    for fragment, function in _capturing_functions(index, trace):
        for call in find(function.body, cst.Call, pattern):
            callee = last_name(call.func) or source_of(call.func)
            handed = {kind_of(name) for name in names_within(call.args)}
            if Kind.STATES in handed or callee in _COUNTING or _runs_only_without_capture(fragment, call):
                continue
            two_batch = "tbo" in callee.split("_") or _asks_for_two_batches(call)
            flag = settings.find("enable_two_batch_overlap")
            yield Hazard(
                name="two_batch_overlap" if two_batch else "skipped_layers",
                text=f"layers that {callee} runs are never captured: it does not get the list of states",
                trigger="two-batch overlap" if two_batch else "see the condition around the call",
                settings=(flag.name,) if two_batch and flag is not None else (),
                default_on=two_batch and flag is not None and flag.default == "True",
                avoid="start without --enable-two-batch-overlap" if two_batch else "no setting is known",
                evidence=(evidence_at(index.source(trace.file), fragment, call),),
            )


def _asks_for_two_batches(call: cst.Call) -> bool:
    return any(argument.keyword is not None and "tbo" in argument.keyword.value.split("_") for argument in call.args)


def _runs_only_without_capture(fragment: Fragment, call: cst.Call) -> bool:
    """Tell whether a branch around the call asks that there be no layers to capture."""
    for ancestor in fragment.ancestors_of(call):
        if isinstance(ancestor, cst.If):
            for inverted in find(ancestor.test, cst.UnaryOperation, m.UnaryOperation(operator=m.Not())):
                if is_kind(inverted.expression, Kind.LAYERS):
                    return True
    return False


def gather_across_ranks(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Hazard]:
    """A gather over the whole tensor-parallel group mixes rows of different ranks under DP attention."""
    for site in sites_of(trace, "gather"):
        callee = (site.note or "").split(" ")[0]
        if {"tensor", "model", "parallel"} <= set(callee.split("_")):
            condition = (site.note or "").partition("; ")[2]
            yield Hazard(
                name="all_to_all_gather",
                text=f"{callee} gathers over the whole tensor-parallel group: with DP attention it mixes the rows "
                "of different DP ranks",
                trigger=f"DP attention together with this branch ({condition})" if condition else "DP attention",
                settings=("enable_dp_attention", "moe_a2a_backend"),
                avoid="do not combine an all-to-all MoE backend with DP attention",
                evidence=(evidence_of(trace, site),),
            )


def missed_backends(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Hazard]:
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
            yield Hazard(
                name="unscattered_backend",
                text="captured states are gathered for some all-to-all backends only; under the others each rank "
                "keeps its own rows",
                trigger=f"moe_a2a_backend {', '.join(missed)}",
                settings=("moe_a2a_backend",),
                avoid="use none of these backends",
                evidence=(evidence_at(source, fragment, branch), *known.values()),
            )


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


def scattered_dense_layers(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Hazard]:
    """Dense layers may leave scattered states too, and the gather is for the layers behind them only."""
    gathers = [site for site in sites_of(trace, "gather") if "first_k_dense_replace" in (site.note or "")]
    if not gathers or _COMMUNICATOR not in index.tree.files:
        return
    source = index.source(_COMMUNICATOR)
    choice = m.IfExp(test=m.Call(func=m.Name("enable_moe_dense_fully_dp")), body=m.Attribute(attr=m.Name("SCATTERED")))
    for fragment, found in find_in(source, "enable_moe_dense_fully_dp", cst.IfExp, choice):
        yield Hazard(
            name="scattered_dense_layers",
            text="dense layers leave scattered states when they run fully data-parallel; the gather begins behind "
            "them only",
            trigger="moe_dense_tp_size 1",
            settings=("moe_dense_tp_size",),
            avoid="start without --moe-dense-tp-size 1",
            evidence=(*(evidence_of(trace, site) for site in gathers), evidence_at(source, fragment, found)),
        )
        return


def ungathered_states(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Hazard]:
    """The final state is gathered over the context-parallel ranks, the captured states are not."""
    for branch in trace.stage_branches:
        if branch.role == "last_stage_only" and "the aux states are not gathered" in (branch.note or ""):
            known = [found for name in _CONTEXT_PARALLEL if (found := settings.find(name)) is not None]
            flags = [setting.flag for setting in known if setting.is_option]
            yield Hazard(
                name="context_parallel",
                text="the final state is gathered over the context-parallel ranks, the captured states are not",
                trigger="prefill context parallel",
                settings=tuple(setting.name for setting in known),
                avoid=f"start without {' or '.join(flags)}" if flags else "start without context parallelism",
                evidence=(evidence_of(trace, branch),),
            )


def unpack_trap(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Hazard]:
    """With the switch on and nothing captured a plain tensor comes back, and its rows are unpacked."""
    tests = [site for site in sites_of(trace, "empty_test") if site.scope.endswith(".forward")]
    unpacks = sites_of(trace, "unpack")
    flags = {site.scope for site in sites_of(trace, "flag_test")}
    unpacks = [site for site in unpacks if site.scope in flags]
    if tests and unpacks:
        yield Hazard(
            name="unpack_trap",
            text="with the switch on and no layer of this stage chosen, one tensor is returned and unpacked as a "
            "pair: it fails, or goes on with single rows when the batch has exactly two",
            trigger="a choice of layers of which this stage has none",
            avoid="switch capture on only where at least one chosen layer is run",
            evidence=tuple(evidence_of(trace, site) for site in (*tests, *unpacks)),
        )


def reused_storage(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Hazard]:
    """A tensor that is kept as it is, by a plain list, may be written over by later layers."""
    plain = {site.scope for site in sites_of(trace, "accumulator_init") if site.value is None}
    sites = [site for site in sites_of(trace, "append") if site.scope in plain and (site.value or "").isidentifier()]
    gathered = {(site.scope, site.name) for site in sites_of(trace, "gather", "state_value")}
    sites = [site for site in sites if (site.scope, site.value) not in gathered]
    if sites:
        yield Hazard(
            name="reused_storage",
            text="a state is kept without a copy: layers that write in place change it after its capture",
            trigger="models whose later layers reuse the storage of their input",
            avoid="compare with a reference before relying on these layers",
            evidence=tuple(evidence_of(trace, site) for site in sites),
        )


def first_layer(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Hazard]:
    """Before the first block there is no residual yet, and the sum that is captured does not exist."""
    pattern = m.Assign(targets=[m.AssignTarget(target=m.Name())], value=m.Name("None"))
    source = index.source(trace.file)
    for fragment, function in _capturing_functions(index, trace):
        empty = {
            last_name(assign.targets[0].target): assign
            for statement in function.body.body
            for assign in find(statement, cst.Assign, pattern)
            if _in_first_arm(fragment, assign)
        }
        for site in sites_of(trace, "append"):
            operands = [part.strip() for part in (site.value or "").split(" + ")]
            used = [name for name in operands[1:] if name in empty]
            before = (site.note or "").startswith("input of block")
            if used and before and fragment.unit.first_line <= site.line <= fragment.unit.last_line:
                yield Hazard(
                    name="first_layer",
                    text="capture index 0 fails: there is no residual before the first block",
                    trigger="capture index 0",
                    avoid="choose indices from 1",
                    evidence=(evidence_of(trace, site), evidence_at(source, fragment, empty[used[0]])),
                )


def _in_first_arm(fragment: Fragment, node: cst.CSTNode) -> bool:
    branch = next((item for item in fragment.ancestors_of(node) if isinstance(item, cst.If)), None)
    return branch is None or "is_first_rank" in names_within([branch.test])


def dropped_residual(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Hazard]:
    """The block hands its residual on beside its output, and the capture leaves it out."""
    source = index.source(trace.file)
    for fragment, function in _capturing_functions(index, trace):
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
            yield Hazard(
                name="dropped_residual",
                text="the block returns its residual apart, and what is captured leaves it out",
                trigger="capture in this model",
                default_on=True,
                avoid="refuse this model, or add the residual",
                evidence=(*(evidence_of(trace, site) for site in sites), evidence_at(source, fragment, blocks[0])),
            )


def _norm_adds_residual(function: cst.FunctionDef, name: str) -> bool:
    """Tell whether the norm after the blocks is given the residual too, so that the state lacks it."""
    given = [m.Arg(m.Name(name)), m.Arg(m.Name("residual"))]
    norm = m.Call(func=m.Attribute(attr=m.Name(m.MatchIfTrue(lambda word: "norm" in word))), args=given)
    return any(True for _ in find(function.body, cst.Call, norm))


def may_scale_final_state(data: bytes) -> bool:
    """Tell cheaply whether a model file can hold such a change; never a false no for the usual names."""
    return b"logits_processor(" in data and any(needle in data for needle in _SCALINGS)


def scaled_final_state(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Hazard]:
    """The final state that reaches the logits processor is scaled or in another type."""
    if not trace.file.is_relative_to(MODELS_ROOT):
        return
    source = index.source(trace.file)
    for fragment, call in find_in(source, "logits_processor", cst.Call):
        if is_logits_processor(call):
            changed = _changed_state(fragment, call)
            if changed is not None:
                yield Hazard(
                    name="scaled_final_state",
                    text="the final state is scaled, or turned into another type, before the logits processor gets it",
                    trigger="the final state of this model",
                    default_on=True,
                    avoid="record the change and undo it",
                    evidence=(evidence_at(source, fragment, changed),),
                )


def _changed_state(fragment: Fragment, call: cst.Call) -> cst.CSTNode | None:
    if len(call.args) < 2:
        return None
    scaling = m.BinaryOperation(operator=m.Divide() | m.Multiply())
    cast = m.Call(func=m.Attribute(attr=m.Name("float")), args=[])
    state = call.args[1].value
    if any(m.matches(choice, scaling | cast) for choice in choices_of(state)):
        return state
    function = fragment.function_of(call)
    if function is None or not isinstance(state, cst.Name):
        return None
    assigns = find(function.body, cst.Assign, m.Assign(targets=[m.AssignTarget(target=m.Name(state.value))]))
    for assign in assigns:
        changes = any(m.matches(choice, scaling | cast) for choice in choices_of(assign.value))
        if changes and fragment.order_of(assign) < fragment.order_of(call):
            return assign
    return None


def gather_before_logits(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Hazard]:
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
                yield Hazard(
                    name="gather_before_logits",
                    text="the logits processor gathers the final state over ranks, the captured states stay sharded",
                    trigger="sequence-parallel layer norms",
                    settings=("enable_layernorm_sp",) if settings.find("enable_layernorm_sp") else (),
                    avoid="start without sequence-parallel layer norms",
                    evidence=(evidence_at(source, fragment, assign),),
                )


def byte_order_mark(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Hazard]:
    """A file that begins with a byte-order mark breaks tools that read it as text."""
    if index.tree.files[trace.file].startswith(b"\xef\xbb\xbf"):
        line = index.source(trace.file).outline.lines[0].strip()
        yield Hazard(
            name="byte_order_mark",
            text="the file begins with a byte-order mark, which must stay in front when lines are added",
            trigger="editing this file",
            avoid="edit bytes, not text",
            evidence=(Evidence(trace.file, 1, "<module>", line),),
        )
