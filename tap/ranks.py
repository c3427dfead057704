"""Which part of a parallel server this process is.

SGLang moved these facts twice: from the model runner to process groups, and from `layers.dp_attention` to
`runtime_context.get_parallel()` (0.5.14 on). Each is taken from wherever this release has it.
"""

from dataclasses import dataclass
from typing import Any

from .config import RefusedError

# Up to 0.5.11 ModelRunner.__init__ is given dp_rank and does not keep it; the patch keeps it under this name.
_GIVEN = "_auxtap_dp_rank"


@dataclass(frozen=True)
class Ranks:
    """This process's pipeline stage, its data-parallel group, and whether it writes for them.

    A writer is rank 0 of its attention-TP and context-parallel groups; the others hold the same rows. `tp` is the rank
    in the attention-TP group.
    """

    pp: int
    pp_size: int
    dp: int
    dp_size: int
    tp: int
    tp_size: int
    is_writer: bool


def find_ranks(model_runner: Any) -> Ranks:
    """Return the ranks of this process.

    Raises:
        RefusedError: there are several data-parallel groups and this one's number is not to be found.
    """
    from sglang.srt.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_world_size

    stages = get_pp_group()
    dp_size = int(getattr(model_runner.server_args, "dp_size", 1) or 1)
    return Ranks(
        pp=int(stages.rank_in_group),
        pp_size=int(stages.world_size),
        dp=find_dp_rank(model_runner, dp_size),
        dp_size=dp_size,
        tp=_attention_rank("tp"),
        tp_size=int(get_tensor_model_parallel_world_size()),
        is_writer=_attention_rank("tp") == 0 and _context_rank() == 0,
    )


def uses_dp_attention(server_args: Any) -> bool:
    """Tell whether attention is data-parallel; from 0.5.20 on the setting that is in effect is not an argument."""
    if getattr(server_args, "enable_dp_attention", False):
        return True
    size = parallel_value("attn_dp_size")
    return size is not None and size > 1


def keep_dp_rank(model_runner: Any, dp_rank: int | None) -> None:
    """Keep the data-parallel rank that a runner was given, for `find_dp_rank`."""
    setattr(model_runner, _GIVEN, dp_rank)


def find_dp_rank(model_runner: Any, dp_size: int) -> int:
    """Return the data-parallel rank of this process, 0 without data parallelism.

    Raises:
        RefusedError: there are several and this one's number is not to be found.
    """
    if dp_size <= 1:
        return 0
    if uses_dp_attention(model_runner.server_args):
        return _attention_rank("dp")
    rank = getattr(model_runner, "dp_rank", None)
    if rank is None:
        rank = getattr(model_runner, _GIVEN, None)
    if rank is None:
        rank = parallel_value("dp_rank")
    if rank is None:
        raise RefusedError(f"data parallelism of size {dp_size}, but this server's rank is not to be found")
    return int(rank)


def _attention_rank(kind: str) -> int:
    """Return this process's rank in its attention-TP (`tp`) or attention-DP (`dp`) group."""
    from sglang.srt.layers import dp_attention

    function = getattr(dp_attention, f"get_attention_{kind}_rank", None)
    if function is not None:
        return int(function())
    rank = parallel_value(f"attn_{kind}_rank")
    if rank is None:
        raise RefusedError(f"this release does not say which attention-{kind.upper()} rank a process has")
    return int(rank)


def _context_rank() -> int:
    """Return the rank in the attention's context-parallel group, 0 where there is none."""
    return int(parallel_value("attn_cp_rank") or 0)


def parallel_value(name: str) -> Any:
    """Return a value of `runtime_context.get_parallel()`, None where this release or process has none."""
    try:
        from sglang.srt.runtime_context import get_parallel

        return getattr(get_parallel(), name)
    except (ImportError, AttributeError, RuntimeError, ValueError, AssertionError):
        return None
