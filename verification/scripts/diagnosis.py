"""Say what a wrong state is: which known mistake would give just these rows.

Imported by `compare_with_transformers.py`, which runs in an engine environment.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

FINAL, FINAL_PRENORM = "final", "final_prenorm"
# Relative errors: below, rows are the same; a mistake that explains a state explains it this well.
SAME = 1e-4
BFLOAT16 = 2.0**-8
TP_SIZES = (2, 4, 8)


@dataclass(frozen=True)
class Prompt:
    """What the reference gives for one prompt: `states` are `hidden_states`, each [tokens, hidden]."""

    sample: str
    states: Sequence[torch.Tensor]


@dataclass(frozen=True)
class Inside:
    """What happened within the reference: around the final norm, and in each block's MLP, [tokens, hidden].

    `down_inputs` [tokens, intermediate] and `down_weights` [hidden, intermediate] are there for plain MLPs only.
    """

    before_norm: torch.Tensor
    after_norm: torch.Tensor
    mlp_outputs: Mapping[int, torch.Tensor]
    down_inputs: Mapping[int, torch.Tensor]
    down_weights: Mapping[int, torch.Tensor]


def look_inside(model: Any, ids: torch.Tensor) -> Inside:
    """Run the reference once more and keep what its blocks did."""
    core = model.model
    before: list[torch.Tensor] = []
    after: list[torch.Tensor] = []
    mlp_outputs: dict[int, torch.Tensor] = {}
    down_inputs: dict[int, torch.Tensor] = {}
    down_weights: dict[int, torch.Tensor] = {}
    hooks = [
        core.norm.register_forward_pre_hook(lambda module, inputs: before.append(inputs[0][0])),
        core.norm.register_forward_hook(lambda module, inputs, output: after.append(output[0])),
    ]
    for number, block in enumerate(core.layers):

        def keep_output(module: Any, inputs: Any, output: Any, number: int = number) -> None:
            whole = output[0] if isinstance(output, tuple) else output
            mlp_outputs[number] = whole.reshape(-1, whole.shape[-1])

        def keep_input(module: Any, inputs: Any, number: int = number) -> None:
            down_inputs[number] = inputs[0].reshape(-1, inputs[0].shape[-1])

        # Mixtral's experts have a name of their own up to transformers 4.
        mlp = getattr(block, "mlp", None) or block.block_sparse_moe
        hooks.append(mlp.register_forward_hook(keep_output))
        down = getattr(mlp, "down_proj", None)
        if isinstance(down, torch.nn.Linear) and down.bias is None:
            hooks.append(down.register_forward_pre_hook(keep_input))
            down_weights[number] = down.weight
    try:
        with torch.no_grad():
            model(input_ids=ids[None], use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return Inside(before[0], after[0], mlp_outputs, down_inputs, down_weights)


def diagnose(name: str, found: torch.Tensor, prompt: Prompt, inside: Inside, neighbours: Sequence[Prompt]) -> str:
    """Say what `found` [tokens, hidden] is instead of the state called `name`."""
    last = name in (FINAL, FINAL_PRENORM)
    layer = len(prompt.states) - 1 if last else int(name.rpartition(".")[2])
    if name == FINAL_PRENORM:
        # The neighbours' states before the norm are not at hand.
        prompt, neighbours = Prompt(prompt.sample, (*prompt.states[:-1], inside.before_norm)), ()
    expected = prompt.states[layer]
    found = found.float()
    if not torch.isfinite(found).all():
        row = int((~torch.isfinite(found)).any(1).nonzero()[0])
        return f"row {row} holds values that are no numbers"
    for text, candidate in whole_candidates(name, layer, prompt, inside):
        if candidate.shape == found.shape and relative(found, candidate) < SAME:
            return text
    bad = [row for row in range(found.shape[0]) if not relative(found[row], expected[row]) < SAME]
    error = relative(found, expected)
    if error < BFLOAT16:
        if relative(found, expected.bfloat16().float()) < error / 8 or error > BFLOAT16 / 8:
            return f"every value is rounded as bfloat16 rounds ({error:.1e})"
        return f"no row is far off, all together {error:.1e}: other arithmetic, or lower precision"
    where = span(bad, found.shape[0])
    return f"{where}: {row_mistake(found, bad, layer, prompt, neighbours)}"


def whole_candidates(name: str, layer: int, prompt: Prompt, inside: Inside) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what a whole state may be instead: (text, tensor [tokens, hidden])."""
    last = len(prompt.states) - 1
    for other, state in enumerate(prompt.states):
        if other != layer:
            off = ", one layer off" if abs(other - layer) == 1 else ""
            what = "the final state" if other == last else f"hidden_states[{other}]"
            yield f"it holds {what} (of layer {other}{off})", state
    if name == FINAL_PRENORM:
        yield "it is the state after the final norm, not before it", inside.after_norm
    else:
        yield "it is the state before the final norm, not after it", inside.before_norm
    block = layer - 1
    if name in (FINAL, FINAL_PRENORM) or block not in inside.mlp_outputs:
        return
    output = inside.mlp_outputs[block]
    residual = prompt.states[layer] - output
    yield f"the residual is missing: it is what block {block}'s MLP adds", output
    yield f"it is the residual alone: block {block}'s MLP is missing", residual
    if block in inside.down_weights:
        weight, inner = inside.down_weights[block], inside.down_inputs[block]
        for size in (size for size in TP_SIZES if weight.shape[1] % size == 0):
            width = weight.shape[1] // size
            for rank in range(size):
                part = slice(rank * width, (rank + 1) * width)
                partial = inner[:, part] @ weight[:, part].T
                yield f"it is not reduced: rank {rank}'s partial sum of {size}", residual + partial


def row_mistake(
    found: torch.Tensor, bad: Sequence[int], layer: int, prompt: Prompt, neighbours: Sequence[Prompt]
) -> str:
    """Say where the wrong rows come from, judged by the first of them."""
    rows = found[list(bad)]
    if not rows.any():
        return "zero: a chunk or padding that was never written"
    first, row = bad[0], found[bad[0]]
    own = prompt.states[layer]
    for other in range(own.shape[0]):
        if other != first and relative(row, own[other]) < SAME:
            return f"row {first} holds row {other} of the same prompt"
    for neighbour in neighbours:
        for other in range(neighbour.states[layer].shape[0]):
            if relative(row, neighbour.states[layer][other]) < SAME:
                return f"row {first} holds row {other} of another request ({neighbour.sample})"
    return f"unlike any state or row of the reference (row {first} is {relative(row, own[first]):.1e} off)"


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative error (Frobenius)."""
    return float((found.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-300))


def span(rows: Sequence[int], n_rows: int) -> str:
    """Name rows shortly."""
    if len(rows) == n_rows:
        return "every row"
    if len(rows) == rows[-1] - rows[0] + 1:
        return f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]} of {n_rows}"
    return f"{len(rows)} of {n_rows} rows, row {rows[0]} the first"
