"""Stand in for the two kernels of GPT-OSS that SGLang has for GPUs only: its attention and its experts.

GPT-OSS accepts no attention backend that runs on a CPU, so one of ours takes the name `triton`, under which nothing
else could run there. A server that used these kernels proves the rest of SGLang's code, not its own attention with
sinks and not its own clamped experts: whoever compares its states says so ("stand-in kernels").
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

BACKEND = "triton"
# `swiglu_alpha` of the released models; SGLang passes it as `gemm1_alpha`.
ALPHA, CLAMP = 1.702, 7.0


def attend(query: Any, keys: Any, values: Any, first: int, scale: float, window: int | None, sinks: Any) -> Any:
    """Return causal attention of one request: query [new, heads, dim], keys and values [tokens, kv heads, dim].

    Row i of `query` stands at position `first` + i and sees at most `window` positions before itself (None or -1:
    all of them). `sinks` [heads] are logits that take part in the softmax and carry no value.
    """
    import torch

    repeats = query.shape[1] // keys.shape[1]
    keys = keys.repeat_interleave(repeats, 1).float()
    values = values.repeat_interleave(repeats, 1).float()
    logits = torch.einsum("nhd,thd->hnt", query.float(), keys) * scale
    there = torch.arange(keys.shape[0])[None]
    here = torch.arange(first, first + query.shape[0])[:, None]
    hidden = there > here
    if window is not None and window >= 0:
        hidden |= there < here - window
    logits = logits.masked_fill(hidden[None], float("-inf"))
    if sinks is not None:
        logits = torch.cat([logits, sinks.float()[:, None, None].expand(-1, logits.shape[1], 1)], -1)
    weights = logits.softmax(-1)
    if sinks is not None:
        weights = weights[..., :-1]
    return torch.einsum("hnt,thd->nhd", weights, values).to(query.dtype)


def make_backend(runner: Any) -> Any:
    """Return an attention backend for a ModelRunner: SGLang's `torch_native`, with sinks and a window."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    class SinkBackend(TorchNativeAttnBackend):  # type: ignore[misc]
        def forward_extend(
            self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **more: Any
        ) -> Any:
            lengths = [int(length) for length in forward_batch.extend_seq_lens]
            return self._attend_all(q, k, v, layer, forward_batch, save_kv_cache, more.get("sinks"), lengths)

        def forward_decode(
            self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **more: Any
        ) -> Any:
            lengths = [1] * forward_batch.seq_lens.shape[0]
            return self._attend_all(q, k, v, layer, forward_batch, save_kv_cache, more.get("sinks"), lengths)

        def _attend_all(
            self, q: Any, k: Any, v: Any, layer: Any, batch: Any, save: bool, sinks: Any, lengths: list[int]
        ) -> Any:
            # The pools stand on the batch, in later releases on the backend itself.
            pool = getattr(batch, "token_to_kv_pool", None) or self.token_to_kv_pool
            requests = getattr(batch, "req_to_token_pool", None) or self.req_to_token_pool
            if save:
                pool.set_kv_buffer(layer, batch.out_cache_loc, k, v)
            query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
            # Rows beyond these are padding; they stay zero.
            output = query.new_zeros((query.shape[0], layer.tp_q_head_num, layer.v_head_dim))
            keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
            row = 0
            for number, length in enumerate(lengths):
                n_tokens = int(batch.seq_lens[number])
                places = requests.req_to_token[batch.req_pool_indices[number], :n_tokens]
                output[row : row + length] = attend(
                    query[row : row + length],
                    keys[places],
                    values[places],
                    n_tokens - length,
                    layer.scaling,
                    layer.sliding_window_size,
                    sinks,
                )
                row += length
            return output.reshape(query.shape[0], -1)

    return SinkBackend(runner)


def register_backend(module: Any) -> None:
    """Put our backend where `--attention-backend triton` finds it (`ATTENTION_BACKENDS`)."""
    if hasattr(module, "ATTENTION_BACKENDS"):
        module.ATTENTION_BACKENDS[BACKEND] = make_backend


def deny_triton_support(module: Any) -> None:
    """Have SGLang take its torch code for index arithmetic, whatever the backend is called (`support_triton`)."""
    if hasattr(module, "support_triton"):
        module.support_triton = lambda backend: False


def narrow_only_dimensions_that_are_there(module: Any) -> None:
    """Load expert biases [experts, hidden], which SGLang narrows on a CPU along a dimension that they lack.

    Seen in 0.5.9 (`layers/moe/fused_moe_triton/layer.py`, `_load_w2`).
    """
    if not hasattr(module, "narrow_padded_param_and_loaded_weight"):
        return
    narrow: Callable[..., Any] = module.narrow_padded_param_and_loaded_weight

    def narrow_or_keep(
        param: Any, weight: Any, param_start: int, weight_start: int, dim: int, *more: Any, **n: Any
    ) -> Any:
        if dim >= weight.dim():
            return param, weight
        return narrow(param, weight, param_start, weight_start, dim, *more, **n)

    module.narrow_padded_param_and_loaded_weight = narrow_or_keep


def add_biased_experts(module: Any) -> None:
    """Have experts with biases computed by us: SGLang's `moe_forward_native` leaves out biases and clamp."""
    if not hasattr(module, "moe_forward_native"):
        return
    native: Callable[..., Any] = module.moe_forward_native

    def forward(layer: Any, x: Any, topk_output: Any, config: Any, *more: Any, **named: Any) -> Any:
        if getattr(layer, "w13_weight_bias", None) is None:
            return native(layer, x, topk_output, config, *more, **named)
        return biased_experts(layer, x, topk_output[0], topk_output[1], config)

    module.moe_forward_native = forward


def biased_experts(layer: Any, x: Any, weights: Any, ids: Any, config: Any) -> Any:
    """Return the sum of the chosen experts: x [tokens, hidden], weights and ids [tokens, chosen].

    Gate and up projection alternate in `w13`; both are clamped before the gated activation.
    """
    import torch

    alpha = getattr(config, "gemm1_alpha", None) or ALPHA
    clamp = getattr(config, "gemm1_clamp_limit", None) or CLAMP
    total = torch.zeros_like(x, dtype=torch.float32)
    for expert in range(layer.w13_weight.shape[0]):
        rows, choices = (ids == expert).nonzero(as_tuple=True)
        if not rows.numel():
            continue
        projected = x[rows] @ layer.w13_weight[expert].T + layer.w13_weight_bias[expert]
        gate, up = projected[:, ::2].clamp(max=clamp), projected[:, 1::2].clamp(-clamp, clamp)
        inner = (up + 1) * gate * torch.sigmoid(gate * alpha)
        result = inner @ layer.w2_weight[expert].T + layer.w2_weight_bias[expert]
        total.index_add_(0, rows, result.float() * weights[rows, choices, None].float())
    return total.to(x.dtype)


HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "sglang.srt.layers.attention.attention_registry": register_backend,
    "sglang.srt.utils.common": deny_triton_support,
    "sglang.srt.model_loader.weight_utils": narrow_only_dimensions_that_are_there,
    "sglang.srt.layers.moe.fused_moe_native": add_biased_experts,
}
