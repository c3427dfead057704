"""Choose the layers on a loaded model and refuse settings under which states would be wrong.

The only facts about SGLang here are attribute names. A setting that a release does not have is no hazard there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import backbones
from .config import RefusedError, TapConfig
from .ranks import uses_dp_attention


def _is_set(value: Any) -> bool:
    return bool(value)


def _is_one(value: Any) -> bool:
    return bool(value == 1)


def _is_above_one(value: Any) -> bool:
    return bool(value is not None and value > 1)


def _is_not_null(value: Any) -> bool:
    return value not in (None, "null")


# (server argument, when it is a hazard, what goes wrong)
HAZARDS = (
    ("speculative_algorithm", _is_set, "the draft worker runs the logits processor as well"),
    ("enable_two_batch_overlap", _is_set, "layers run by model_forward_maybe_tbo are never captured"),
    ("enable_piecewise_cuda_graph", _is_set, "the Python of the layer loop does not run on graph replay"),
    ("enforce_piecewise_cuda_graph", _is_set, "the Python of the layer loop does not run on graph replay"),
    ("enable_breakable_cuda_graph", _is_set, "the Python of the layer loop does not run on graph replay"),
    ("enable_nsa_prefill_context_parallel", _is_set, "the final state is gathered, auxiliary states are not"),
    ("enable_dsa_prefill_context_parallel", _is_set, "the final state is gathered, auxiliary states are not"),
    ("enable_prefill_context_parallel", _is_set, "the final state is gathered, auxiliary states are not"),
    ("attn_cp_size", _is_above_one, "prefill context parallelism splits the rows of a prompt"),
    ("dcp_size", _is_above_one, "context parallelism of the decode is not examined"),
    ("enable_layernorm_sp", _is_set, "the rows reach the logits processor spread over the ranks"),
    ("enable_aiter_allreduce_fusion", _is_set, "a state at the capture is not yet reduced over the TP ranks"),
    ("enable_return_aux_hidden_states", _is_set, "SGLang's own capture would choose the layers as well"),
    ("moe_dense_tp_size", _is_one, "dense layers leave scattered outputs"),
    ("disaggregation_mode", _is_not_null, "prefill and decode run in different servers"),
    ("enable_pdmux", _is_set, "split prefill passes the layers in pieces"),
    ("dllm_algorithm", _is_set, "diffusion decoding runs the prompt more than once"),
    ("is_embedding", _is_set, "the pooler path does not reach the logits processor"),
)

# (switch that must be on where the release has it, what goes wrong without it). Each turns off what is on by
# default: prefill graphs (piecewise in 0.5.10-0.5.13, from 0.5.14 on of any kind), and the fused all-reduce.
REQUIRED = (
    ("disable_piecewise_cuda_graph", "the Python of the layer loop does not run on replay of a prefill graph"),
    ("disable_prefill_cuda_graph", "the Python of the layer loop does not run on replay of a prefill graph"),
    (
        "enforce_disable_flashinfer_allreduce_fusion",
        "a state at the capture is not yet reduced over the TP ranks when a forward has at most 2048 tokens",
    ),
)


def check_settings(server_args: Any, max_wait_s: float) -> None:
    """Refuse server arguments under which captured values are wrong or missing.

    Raises:
        RefusedError: naming the argument and the reason.
    """
    for name, is_hazard, reason in HAZARDS:
        value = getattr(server_args, name, None)
        if is_hazard(value):
            raise RefusedError(f"--{name.replace('_', '-')} is {value}: {reason}")
    for name, reason in REQUIRED:
        if getattr(server_args, name, True) is not True:
            raise RefusedError(f"--{name.replace('_', '-')} is missing: {reason}")
    backend = getattr(server_args, "moe_a2a_backend", None) or "none"
    if backend == "mori":
        raise RefusedError("--moe-a2a-backend is mori: its scattered rows are not gathered before the capture")
    if backend != "none" and uses_dp_attention(server_args):
        raise RefusedError(f"--moe-a2a-backend is {backend} with DP attention: the gather mixes data-parallel ranks")
    watchdog_s = getattr(server_args, "watchdog_timeout", None)
    if watchdog_s and max_wait_s >= watchdog_s:
        raise RefusedError(
            f"AUXTAP_MAX_WAIT_S is {max_wait_s:g}, not below the server's --watchdog-timeout of {watchdog_s:g}"
        )


def turn_off_fused_all_reduce(server_args: Any) -> bool:
    """Clear the flag that 0.5.9 turns on by itself; tell whether it was on.

    With it, a state at the capture is not yet reduced over the TP ranks when a forward has at most 2048 tokens
    (0.5.9 layers/communicator.py `apply_flashinfer_allreduce_fusion` reads it at every call). Releases with a
    switch of their own against it (0.5.10 on) are refused without that switch instead.
    """
    if hasattr(server_args, "enforce_disable_flashinfer_allreduce_fusion"):
        return False
    on = False
    for arguments in (server_args, *_global_arguments()):
        if isinstance(arguments, dict):
            on |= bool(arguments.get(_FUSION))
            if _FUSION in arguments:
                arguments[_FUSION] = False
        elif getattr(arguments, _FUSION, False):
            setattr(arguments, _FUSION, False)
            on = True
    return on


_FUSION = "enable_flashinfer_allreduce_fusion"


def _global_arguments() -> Sequence[Any]:
    """Return where else a release keeps its arguments: a dict up to 0.5.3, an object after."""
    try:
        from sglang.srt.server_args import get_global_server_args
    except ImportError:
        from sglang.srt.managers import schedule_batch

        return (schedule_batch.global_server_args_dict,)
    return (get_global_server_args(),)


@dataclass(frozen=True)
class Backbone:
    """What runs the decoder blocks `start`..`end` - 1 of this stage.

    `head` unpacks the states that the backbone captures; None where a line in its loop hands them to the tap.
    `staged` tells whether the patch taps its pipeline stages.
    """

    module: Any
    head: Any
    start: int
    end: int
    staged: bool


def find_backbone(model: Any) -> Backbone:
    """Find the one module of the loaded model that the patch captures; wrappers such as Kimi-K2.5's are looked through.

    Raises:
        RefusedError: none or several are captured, or nothing unpacks what it would return.
    """
    name = type(model).__name__
    found = [module for module in model.modules() if hasattr(module, "layers")]
    known = [module for module in found if _key(module) in backbones.CAPTURES or _key(module) in backbones.LOOPS]
    if len(known) != 1:
        reasons = [f"{key}: {backbones.REFUSED[key]}" for key in map(_key, found) if key in backbones.REFUSED]
        why = f" ({'; '.join(dict.fromkeys(reasons))})" if reasons else ""
        raise RefusedError(f"{name} has {len(known)} backbones that this patch captures, not one{why}")
    module = known[0]
    key = _key(module)
    heads = [owner for owner in model.modules() if getattr(owner, "model", None) is module]
    for head in heads:
        if _key(head) in backbones.REFUSED:
            raise RefusedError(f"{name}: {_key(head)}: {backbones.REFUSED[_key(head)]}")
    start, end = int(getattr(module, "start_layer", 0)), int(getattr(module, "end_layer", len(module.layers)))
    if key in backbones.LOOPS:
        return Backbone(module, None, start, end, backbones.LOOPS[key])
    heads = [owner for owner in heads if hasattr(owner, "capture_aux_hidden_states")]
    if len(heads) != 1:
        raise RefusedError(f"{name}: {len(heads)} modules unpack what {type(module).__name__} captures, not one")
    return Backbone(module, heads[0], start, end, backbones.CAPTURES[key])


def find_final_norm(backbone: Backbone) -> Any:
    """Return the module that the last stage's forward calls on the state behind the last block.

    Raises:
        RefusedError: it is called in a way that no hook sees, or is no norm.
    """
    kind, key = type(backbone.module).__name__, _key(backbone.module)
    if key not in backbones.NORMS:
        raise RefusedError(f"the pre-norm final state of {kind} is not to be had: its final norm is not recognised")
    norm = getattr(backbone.module, backbones.NORMS[key], None)
    if not type(norm).__name__.endswith("Norm"):
        raise RefusedError(f"the pre-norm final state of {kind} is not to be had: its norm is {type(norm).__name__}")
    return norm


def check_uncompiled(server_args: Any) -> None:
    """Refuse the compiled decode where a hook stands before the final norm.

    Raises:
        RefusedError: `--enable-torch-compile` is set.
    """
    if getattr(server_args, "enable_torch_compile", False):
        raise RefusedError("--enable-torch-compile is set: the hook before the final norm would be compiled with it")


def _key(module: Any) -> str:
    """Return the key of the class that defines a module's forward."""
    definer = next((kind for kind in type(module).__mro__ if "forward" in kind.__dict__), type(module))
    return f"{definer.__module__.rpartition('sglang.srt.models.')[2]}.{definer.__name__}"


def arm_backbone(backbone: Backbone, config: TapConfig, num_layers: int, pp_size: int) -> tuple[int, ...]:
    """Set the raw loop indices that this stage owns and return them, ascending.

    The flag goes up only on a stage that returns states to unpack: with the flag set and nothing captured the
    head would unpack a plain tensor, which is silent nonsense for a batch of exactly two rows.

    Raises:
        RefusedError: an index is out of range, or this model's stage exit carries no tap.
    """
    if not config.layers:
        raise RefusedError("AUXTAP_LAYERS names no capture index")
    if config.layers[0] < 1 or config.layers[-1] >= num_layers:
        raise RefusedError(
            f"capture indices {list(config.layers)} are not within 1 to {num_layers - 1} "
            f"(the model has {num_layers} decoder blocks; index i is what enters block i)"
        )
    name = type(backbone.module).__name__
    if pp_size > 1 and not backbone.staged:
        raise RefusedError(f"the patch has no stage tap for {name}; write it with `auxtap patch --model ...`")
    own = tuple(layer for layer in config.layers if backbone.start <= layer < backbone.end)
    if backbone.head is None:
        return own
    # Where the backbone marks its layers itself (qwen2_moe in 0.5.9) its own setter must do it.
    setter = getattr(backbone.module, "set_eagle3_layers_to_capture", None)
    if setter is not None:
        setter(list(own))
    else:
        backbone.module.layers_to_capture = list(own)
        if mark := backbones.MARKS.get(_key(backbone.module)):
            for index in range(backbone.start, backbone.end):
                setattr(backbone.module.layers[index], mark, index in own)
    if list(backbone.module.layers_to_capture) != list(own):
        raise RefusedError(f"{name} captures {list(backbone.module.layers_to_capture)} where {list(own)} was set")
    backbone.head.capture_aux_hidden_states = bool(own) and backbone.end >= num_layers
    return own
