"""Follow calls of kernels and collectives that are known by name: what they give, and what they need."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import libcst as cst

from auxtap.tracer.blocks.expressions import LAST, MOVED, UPDATE, Expressions, Valued
from auxtap.tracer.blocks.values import (
    DERIVED,
    FALSE,
    NONE,
    OTHER,
    TENSORS,
    TRUE,
    Kind,
    Value,
    Way,
    several,
)

ADDITION = "post_residual_addition"
# Methods of a norm that add the residual, reduce over the ranks and normalise in one kernel; the second may decline.
_FUSED_NORMS = frozenset({"forward_with_allreduce_fusion", "forward_native", "forward"})
_ATTEMPTS = frozenset({"forward_with_allreduce_fusion_quant_per_group"})
_REDUCING = frozenset({"forward_with_allreduce_fusion"}) | _ATTEMPTS
# Kernels that add the residual, normalise and quantise; what they give back as the residual comes last.
_QUANT_KERNELS = frozenset({"fused_rms_mxfp4_quant", "fused_rms_fp8_group_quant", "_fused_rmsnorm_fp8_per_token_quant"})
# A finalize handoff of the experts is completed with the residual add and the norm.
_FINALIZES = "finalize"
_COMPLETES = frozenset(
    {"moe_tensor_model_parallel_all_reduce", "tensor_model_parallel_all_reduce", "moe_expert_parallel_all_reduce"}
)
# Rows of one tensor go to other ranks, or come from them: the values stay.
MOVER = "_communicate_simple_fn"
MOVES = frozenset({MOVER, "input_move", "capture_move", "sp_entry_scatter"})
_GATHERS = frozenset({"attn_tp_all_gather_into_tensor"})
# Fresh storage for the rows of all ranks.
_BUFFERS = frozenset({"get_local_dp_buffer"})
# Questions whose answer is not followed; none changes what it is given.
_QUESTIONS = frozenset(
    {
        "apply_aiter_all_reduce_fusion",
        "apply_flashinfer_allreduce_fusion",
        "isinstance",
        "hasattr",
        "len",
        "int",
        "bool",
    }
)
# What a boundary looks up for a batch, and the transport of rows that it binds to what it has read.
_LOOKED_UP = frozenset({"path_for", "_batch_steps", "variant_for", "bind"})
# What a boundary says of storage that a collector may keep as it is (0.5.21 on).
PRESERVES = "capture_preserves_residual"
_ADAPTERS = frozenset({"attn_input_adapter", "handoff"})
_READ_ONLY = "_post_attn_residual_is_read_only"


@dataclass(frozen=True)
class Given:
    """One argument of a call: its keyword, how many stars it has, its value, and the name that it was."""

    keyword: str | None
    star: str
    value: Value
    node: cst.BaseExpression


class Kernels(Expressions):
    """Evaluates calls that are known by name."""

    def known(self, node: cst.Call, callee: Value, given: tuple[Given, ...], way: Way) -> Valued | None:
        """Return what a call of a known kernel, collective or question gives."""
        label = callee.label
        owner = callee.parts[0] if callee.parts else OTHER
        tensors = [each for each in given if each.value.kind in TENSORS]
        if label == "isinstance" and tensors and given[-1].value.label == "tuple":
            return [(way, FALSE)]
        if label in _QUESTIONS or (label in _LOOKED_UP and not tensors):
            return [(way, OTHER)]
        if label == _READ_ONLY:
            kept = {name: replace(v, own=True) if v.kind in TENSORS else v for name, v in way.names.items()}
            return [(replace(way, names=kept), TRUE), (way, FALSE)]
        if any(each.value.is_tracked and each.value.kind not in TENSORS for each in given):
            return None
        if label == PRESERVES:
            return [(way, Value(Kind.OTHER, label=PRESERVES))]
        if label in _ADAPTERS and not tensors:
            return [(way, DERIVED)]
        if label in MOVES or label in _COMPLETES:
            derived = any(each.value.kind is Kind.DERIVED for each in given)
            if len(tensors) != 1:
                return [(way, DERIVED)] if derived else None
            if label in _COMPLETES:
                return self._reduced(tensors[0].value, way)
            moved = tensors[0].value
            return [(way, moved if moved.kind is Kind.CHANGED else replace(moved, own=False, label=MOVED))]
        if label == "reduce_scatter_tensor":
            return self._scattered(given, way)
        if label in _GATHERS:
            return self._gathered(given, way)
        if label in _BUFFERS:
            return [(way, Value(Kind.STORAGE))]
        if label == "prepare" and owner.kind not in (Kind.OBJECT, Kind.SUPER) and self._is_path(owner):
            return self._prepared(given, way)
        if self._is_norm(callee):
            return self._normed(callee, given, way)
        if label in _QUANT_KERNELS or (label == _FINALIZES and len(tensors) == 2):
            return self._quantised(given, way)
        return None

    def _is_path(self, owner: Value) -> bool:
        """Tell whether it is the path of a boundary, and not a boundary."""
        return not (owner.kind is Kind.MEMBER and owner.label.endswith("_boundary"))

    def _is_norm(self, callee: Value) -> bool:
        if callee.label in _FUSED_NORMS | _ATTEMPTS and callee.parts:
            return self._is_norm(callee.parts[0])
        return callee.kind is Kind.MEMBER and callee.label.endswith("norm")

    def _normed(self, callee: Value, given: tuple[Given, ...], way: Way) -> Valued:
        tensors = [each for each in given if each.value.kind in TENSORS]
        if not tensors or (len(tensors) == 1 and (len(given) == 1 or given[1].value.kind is not Kind.NONE)):
            return [(way, DERIVED)]
        if callee.label in _REDUCING:
            if way.owed != "reduce":
                return [
                    (way, several(DERIVED, Value(Kind.CHANGED, label="the ranks sum it although they have before")))
                ]
            way = replace(way, owed=None)
        made = replace(several(DERIVED, self._adding(given, way)), is_there=True)
        declined = [(replace(way, owed="reduce"), NONE)] if callee.label in _ATTEMPTS else []
        return [*declined, (replace(way, spent=True), made)]

    def _prepared(self, given: tuple[Given, ...], way: Way) -> Valued:
        """Follow the path of a boundary, which is told what waits to be added to the stream."""
        told = Value(Kind.KEYWORDS)
        for each in given:
            if each.star == "**" and each.value.kind is Kind.KEYWORDS:
                told = each.value
        pending, update, written = (told.item(name) for name in ("pending", UPDATE, "written"))
        if way.has_pending:
            right = pending is not None and pending.kind is Kind.PENDING and update == Value(Kind.OTHER, label=UPDATE)
        else:
            unwritten = written is None or written.kind is Kind.NONE
            whole = (way.has_residual is True) is (written == TRUE) and (unwritten or written == TRUE)
            right = way.has_pending is False and pending is None and update is None and whole
        added = (
            self._adding(given, way) if right else Value(Kind.CHANGED, label="its path is not told what is to be added")
        )
        return [(replace(way, spent=True), several(DERIVED, added))]

    def _adding(self, given: Sequence[Given], way: Way) -> Value:
        """Return the residual that a call gives back which adds its first argument to its second."""
        plain = [each for each in given if not each.star and each.keyword is None]
        named = {each.keyword: each.value for each in given if each.keyword is not None}
        for each in given:
            if each.star == "**" and each.value.kind is Kind.KEYWORDS:
                named |= dict(zip(each.value.keys, each.value.parts, strict=True))
        addition = named.get(ADDITION, plain[2].value if len(plain) == 3 else NONE)
        if addition.kind is not Kind.NONE:
            return Value(Kind.CHANGED, label="something more is added to it")
        state = plain[0].value if plain else OTHER
        residual = plain[1].value if len(plain) > 1 else named.get("residual", NONE)
        return self._sum_in_order(state, residual, way)

    def _sum_in_order(self, state: Value, residual: Value, way: Way) -> Value:
        """Return the sum of a kernel that treats its two tensors differently."""
        if state.kind is Kind.RESIDUAL:
            return Value(Kind.CHANGED, label="the residual stands where the state belongs")
        return self.sum_of(state, residual, way)

    def _quantised(self, given: tuple[Given, ...], way: Way) -> Valued:
        tensors = [each.value for each in given if each.value.kind in TENSORS]
        if len(tensors) != 2:
            return [(way, DERIVED)]
        first = given[0].value.kind in TENSORS
        added = (
            self._sum_in_order(tensors[0], tensors[1], way)
            if first
            else Value(Kind.CHANGED, label="a kernel gets it elsewhere")
        )
        return [(replace(way, spent=True), replace(several(DERIVED, added), label=LAST))]

    def _reduced(self, tensor: Value, way: Way) -> Valued:
        """Follow a sum over the ranks, which must be what the block before left to this one."""
        if tensor.kind is Kind.STATE and way.owed == "reduce":
            return [(replace(way, owed=None), tensor)]
        return [(way, Value(Kind.CHANGED, label="the ranks sum it although they have before"))]

    def _scattered(self, given: tuple[Given, ...], way: Way) -> Valued | None:
        """Follow `group.reduce_scatter_tensor(output, tensor)`, which fills the storage that it is given."""
        if len(given) != 2 or given[0].value.kind is not Kind.STORAGE or not isinstance(given[0].node, cst.Name):
            return None
        if given[1].value.kind is not Kind.STATE or way.owed != "scatter":
            return None
        done = replace(way, owed=None)
        return [(done.bind(given[0].node.value, replace(given[1].value, own=True)), NONE)]

    def _gathered(self, given: tuple[Given, ...], way: Way) -> Valued | None:
        """Follow `gather_into(output, tensor)`, which fills the storage that it is given with the rows of all ranks."""
        if len(given) != 2 or given[0].value.kind is not Kind.STORAGE or not isinstance(given[0].node, cst.Name):
            return None
        return [(way.bind(given[0].node.value, replace(given[1].value, own=True)), NONE)]

    def method_of_tensor(self, node: cst.Call, method: str, tensor: Value) -> Value:
        """Return what a method of a tensor gives."""
        match method:
            case "clone" if not node.args:
                return replace(tensor, own=True)
            case "contiguous":
                return tensor
            case "tensor_split" if tensor.kind is Kind.RESIDUAL:
                return Value(Kind.TUPLE, label="split", parts=(tensor,))
            case "new_empty":
                return Value(Kind.STORAGE)
            case "numel" | "dim" | "size" | "element_size":
                return OTHER
            case _:
                return self.refuse(node, f"what .{method} makes of it is not known")
