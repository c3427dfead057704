"""Settings under which captured values are wrong or missing, and what is decided about each in a given tree."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.rewriters.places.syntax import annotated_fields

SERVER_ARGS = SRT_ROOT / "server_args.py"
_FIELD_GROUPS = SRT_ROOT / "arg_groups/fields"
Verdict = Literal["repaired", "flag", "refused"]


@dataclass(frozen=True)
class Decision:
    """What is done about one hazard.

    `repaired`: the tap changes the setting itself when it is armed. `flag`: the server must be started with
    `flags`. `refused`: the tap ends the server at start when `flags` are set. `reason` says what would go wrong.
    """

    hazard: str
    verdict: Verdict
    flags: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class _Rule:
    """A decision that holds where `ServerArgs` has the field `given` and lacks the field `absent`."""

    given: str
    decision: Decision
    absent: str = ""


def _rule(given: str, verdict: Verdict, flags: Sequence[str], hazard: str, reason: str, absent: str = "") -> _Rule:
    return _Rule(given, Decision(hazard, verdict, tuple(flags), reason), absent)


_FUSED = "fused all-reduce"
_FUSED_REASON = "at the capture a state is not yet reduced over the TP ranks when a forward has at most 2048 tokens"
_GRAPHS = "prefill graphs"
_GRAPHS_REASON = "the Python of the layer loop does not run on graph replay"
_CONTEXT = "prefill context parallelism"
_CONTEXT_REASON = "the final state is gathered over the ranks, captured states are not"
_A2A = "all-to-all MoE"

_RULES = (
    _rule(
        "enable_flashinfer_allreduce_fusion",
        "repaired",
        (),
        _FUSED,
        f"{_FUSED_REASON}; arming clears enable_flashinfer_allreduce_fusion, which has no switch to keep it off",
        absent="enforce_disable_flashinfer_allreduce_fusion",
    ),
    _rule(
        "enforce_disable_flashinfer_allreduce_fusion",
        "flag",
        ("--enforce-disable-flashinfer-allreduce-fusion",),
        _FUSED,
        _FUSED_REASON,
    ),
    _rule(
        "disable_radix_cache",
        "flag",
        ("--disable-radix-cache",),
        "radix cache",
        "the rows of a cached prefix are never computed again",
    ),
    _rule("disable_piecewise_cuda_graph", "flag", ("--disable-piecewise-cuda-graph",), _GRAPHS, _GRAPHS_REASON),
    _rule("disable_prefill_cuda_graph", "flag", ("--disable-prefill-cuda-graph",), _GRAPHS, _GRAPHS_REASON),
    _rule("enforce_piecewise_cuda_graph", "refused", ("--enforce-piecewise-cuda-graph",), _GRAPHS, _GRAPHS_REASON),
    _rule("enable_breakable_cuda_graph", "refused", ("--enable-breakable-cuda-graph",), _GRAPHS, _GRAPHS_REASON),
    _rule("enable_piecewise_cuda_graph", "refused", ("--enable-piecewise-cuda-graph",), _GRAPHS, _GRAPHS_REASON),
    _rule(
        "speculative_algorithm",
        "refused",
        ("--speculative-algorithm",),
        "speculative decoding",
        "the draft worker runs a logits processor of its own",
    ),
    _rule(
        "enable_two_batch_overlap",
        "refused",
        ("--enable-two-batch-overlap",),
        "two-batch overlap",
        "blocks that run in two overlapping halves are never captured",
    ),
    _rule(
        "moe_dense_tp_size",
        "refused",
        ("--moe-dense-tp-size 1",),
        "scattered dense blocks",
        "dense blocks leave their rows scattered over the ranks",
    ),
    _rule(
        "moe_a2a_backend",
        "refused",
        ("--moe-a2a-backend mori",),
        _A2A,
        "mori's scattered rows are not gathered before the capture",
    ),
    _rule(
        "moe_a2a_backend",
        "refused",
        ("--moe-a2a-backend", "--enable-dp-attention"),
        f"{_A2A} with DP attention",
        "the gather before the capture mixes data-parallel ranks",
    ),
    _rule(
        "enable_nsa_prefill_context_parallel",
        "refused",
        ("--enable-nsa-prefill-context-parallel",),
        _CONTEXT,
        _CONTEXT_REASON,
    ),
    _rule(
        "enable_prefill_context_parallel", "refused", ("--enable-prefill-context-parallel",), _CONTEXT, _CONTEXT_REASON
    ),
    _rule(
        "enable_dsa_prefill_context_parallel",
        "refused",
        ("--enable-dsa-prefill-context-parallel",),
        _CONTEXT,
        _CONTEXT_REASON,
    ),
    _rule("dcp_size", "refused", ("--dcp-size",), "decode context parallelism", "what it does to prompts is not known"),
    _rule(
        "enable_layernorm_sp",
        "refused",
        ("--enable-layernorm-sp",),
        "LayerNorm sequence parallelism",
        "the rows reach the logits processor spread over the ranks",
    ),
    _rule(
        "enable_aiter_allreduce_fusion",
        "refused",
        ("--enable-aiter-allreduce-fusion",),
        _FUSED,
        "at the capture a state is not yet reduced over the TP ranks",
    ),
    _rule(
        "enable_return_aux_hidden_states",
        "refused",
        ("--enable-return-aux-hidden-states",),
        "SGLang's own capture",
        "it would choose the captured layers as well",
    ),
    _rule("attn_cp_size", "refused", ("--attn-cp-size",), _CONTEXT, "the rows of a prompt are split over the ranks"),
    _rule(
        "disaggregation_mode",
        "refused",
        ("--disaggregation-mode",),
        "disaggregation",
        "prefill and decode run in different servers",
    ),
    _rule("enable_pdmux", "refused", ("--enable-pdmux",), "split prefill", "a prompt passes the layers in pieces"),
    _rule(
        "dllm_algorithm",
        "refused",
        ("--dllm-algorithm",),
        "diffusion decoding",
        "the prompt runs through the layers more than once",
    ),
    _rule(
        "is_embedding",
        "refused",
        ("--is-embedding",),
        "embedding server",
        "the pooler path does not reach the logits processor",
    ),
)


def decide_hazards(tree: SourceTree) -> tuple[Decision, ...]:
    """Return a decision for every hazard that the tree's server arguments make possible, in a fixed order."""
    fields = argument_fields(tree)
    return tuple(rule.decision for rule in _RULES if rule.given in fields and rule.absent not in fields)


def argument_fields(tree: SourceTree) -> frozenset[str]:
    """Return the names of the server arguments; from 0.5.20 on the class is put together from groups of fields."""
    own = annotated_fields(tree.files.get(SERVER_ARGS, b""), "ServerArgs")
    grouped = [annotated_fields(data) for path, data in tree.files.items() if path.parent == _FIELD_GROUPS]
    return own.union(*grouped)
