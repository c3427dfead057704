"""Choose the layers on a loaded model and refuse settings under which states would be wrong.

Which settings those are says the table that the patch carries. A setting that a release does not have is no hazard
there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import backbones, hazards, protocol
from .config import RefusedError, TapConfig
from .protocol import POST_NORM
from .ranks import parallel_value


def check_settings(server_args: Any, config: TapConfig) -> None:
    """Refuse server arguments under which captured values are wrong or missing.

    Raises:
        RefusedError: naming the arguments and the reason.
    """
    for reason, prenorm, switches in hazards.REFUSED:
        if config.final == POST_NORM and prenorm:
            continue
        found = [_switched(server_args, *switch) for switch in switches]
        if all(found):
            raise RefusedError(f"{' and '.join(found)}: {reason}")
    for argument, reason in hazards.NEEDED:
        if getattr(server_args, argument, True) is not True:
            raise RefusedError(f"{_option(argument)} is missing: {reason}")
    watchdog_s = getattr(server_args, "watchdog_timeout", None)
    if watchdog_s and config.max_wait_s >= watchdog_s:
        raise RefusedError(
            f"AUXTAP_MAX_WAIT_S is {config.max_wait_s:g}, not below the server's --watchdog-timeout of {watchdog_s:g}"
        )


def _switched(server_args: Any, argument: str, key: Sequence[str], only: Sequence[str], harmless: Sequence[str]) -> str:
    """Return the argument with its value where that is one that switches the hazard on, else nothing."""
    for value in _values(server_args, argument):
        for name in key:
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
        if value is None or value is False or value == "":
            continue
        text = str(value).lower()
        if text in only if only else text not in harmless:
            return f"{_option(argument)} is {value}"
    return ""


def _values(server_args: Any, argument: str) -> Iterator[Any]:
    """Yield what an argument was given and what has been decided since.

    Decisions are written into the argument up to 0.5.18; later the record keeps what it was given, and they are
    declared beside it (arg_groups/overrides.py `declare_resolution`). Sizes are also those of the groups that were
    made.
    """
    yield getattr(server_args, argument, None)
    if not getattr(server_args, "_declarations_materialized", False):
        declared = getattr(server_args, "_resolved_overrides", None) or ()
        yield from [fields[argument] for _, fields in declared if argument in fields][-1:]
    if argument.endswith("_size"):
        yield parallel_value(argument)


def _option(argument: str) -> str:
    return "--" + argument.replace("_", "-")


def clear_settings(server_args: Any) -> "list[str]":
    """Turn off what the tap can turn off itself, and return the arguments that were on.

    Only in releases that have no switch for it: their servers read the argument at every call (0.5.9
    layers/communicator.py `apply_flashinfer_allreduce_fusion`).
    """
    cleared = []
    for argument, unless in hazards.CLEARED:
        if not hasattr(server_args, unless) and _clear(server_args, argument):
            cleared.append(argument)
    return cleared


def _clear(server_args: Any, argument: str) -> bool:
    on = False
    for arguments in (server_args, *_global_arguments()):
        if isinstance(arguments, dict):
            on |= bool(arguments.get(argument))
            if argument in arguments:
                arguments[argument] = False
        elif getattr(arguments, argument, False):
            setattr(arguments, argument, False)
            on = True
    return on


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


def find_setters(model: Any) -> "protocol.SetterRules":
    """Return what the setters of the loaded model's class make of a draft model's ids."""
    return backbones.SETTERS.get(_class_key(type(model)), {})


def _key(module: Any) -> str:
    """Return the key of the class that defines a module's forward."""
    return _class_key(next((kind for kind in type(module).__mro__ if "forward" in kind.__dict__), type(module)))


def _class_key(kind: type) -> str:
    return f"{kind.__module__.rpartition('sglang.srt.models.')[2]}.{kind.__name__}"


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
