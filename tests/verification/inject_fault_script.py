"""Put one fault into the patched SGLang of this process; a forked server runs this before it begins.

`INJECTED_FAULT` names the fault. Most change one line of a function of the patched tree, as a careless patch or a new
release would, and compile it anew; the others replace a function of the tap.
"""

import inspect
import os
import textwrap
import time
from collections.abc import Callable
from typing import Any

from sglang.srt.auxtap import arming, capture, engine, rows
from sglang.srt.auxtap.spool import Part
from sglang.srt.layers import linear
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.models import llama

FAULTS: dict[str, Callable[[], None]] = {}
CAPTURE = "aux_hidden_states.append(hidden_states + residual)"
LOOP = "aux_hidden_states = []"
NORM = "hidden_states, _ = self.norm(hidden_states, residual)"


def fault(inject: Callable[[], None]) -> Callable[[], None]:
    """Register a fault under its name."""
    FAULTS[inject.__name__] = inject
    return inject


def server_fault(inject: Callable[[], None]) -> Callable[[], None]:
    """Register a fault that no state comes of."""
    return fault(inject)


def edit(owner: Any, name: str, old: str, new: str) -> None:
    """Change one line of a function and compile it within its module."""
    function = inspect.unwrap(getattr(owner, name))
    text = textwrap.dedent(inspect.getsource(function))
    assert text.count(old) == 1, f"{name} does not hold {old!r} once"
    made: dict[str, Any] = {}
    code = compile(text.replace(old, new), inspect.getfile(function), "exec")
    exec(code, function.__globals__, made)
    setattr(owner, name, made[name])


def edit_loop(old: str, new: str) -> None:
    """Change the forward that runs Llama's decoder blocks."""
    edit(llama.LlamaModel, "forward", old, new)


@fault
def layer_off_by_one() -> None:
    """Ids are taken for loop indices of the block before: each state is one block too late."""
    original = arming.arm_backbone

    def arm(backbone: Any, *rest: Any) -> Any:
        own = original(backbone, *rest)
        backbone.module.layers_to_capture = [layer + 1 for layer in own]
        return own

    arming.arm_backbone = arm


@fault
def swapped_layers() -> None:
    """States come in another order than their names."""
    edit_loop(CAPTURE, "aux_hidden_states.insert(0, hidden_states + residual)")


@fault
def missing_residual() -> None:
    """Only what the block adds is captured."""
    edit_loop(CAPTURE, "aux_hidden_states.append(hidden_states.clone())")


@fault
def missing_block_output() -> None:
    """Only the residual is captured."""
    edit_loop(CAPTURE, "aux_hidden_states.append(residual.clone())")


@fault
def pre_norm() -> None:
    """The final state is taken before the final norm."""
    edit_loop(NORM, f"self.before_norm = hidden_states + residual; {NORM}")
    edit(
        llama.LlamaForCausalLM,
        "forward",
        "aux_hidden_states = None\n",
        "self.logits_processor.m = self.model\n    aux_hidden_states = None\n",
    )
    tap = engine.tap
    engine.tap = lambda processor, final, states, batch: tap(processor, processor.m.before_norm, states, batch)


@fault
def aliased_storage() -> None:
    """All captured states share the storage that the last of them was written into."""
    llama.shared = {}
    edit_loop(
        CAPTURE,
        "aux_hidden_states.append(shared.setdefault(hidden_states.shape, torch.empty_like(hidden_states))"
        ".copy_(hidden_states + residual))",
    )


@fault
def unreduced_partial_sum() -> None:
    """A state is captured before the all-reduce of the block: the writer has its own rank's part of the sum only."""
    llama.partial = {}
    reduce = linear.tensor_model_parallel_all_reduce

    def keep_and_reduce(partial: Any) -> Any:
        llama.partial["last"] = partial.clone()
        return reduce(partial)

    linear.tensor_model_parallel_all_reduce = keep_and_reduce
    edit_loop(CAPTURE, "aux_hidden_states.append(partial['last'] + residual)")


@fault
def padded_rows_kept() -> None:
    """A prompt's rows are counted with the padding behind them."""
    original = rows.split_rows

    def split(*given: Any) -> Any:
        return tuple(
            rows.RequestRows(
                each.rid, -(-each.n_tokens // 8) * 8, each.first_row, each.batch_row, -(-each.n_rows // 8) * 8
            )
            for each in original(*given)
        )

    rows.split_rows = split


def shift_rows(by: Callable[[rows.RequestRows], int]) -> None:
    original = rows.split_rows

    def split(*given: Any) -> Any:
        return tuple(
            rows.RequestRows(each.rid, each.n_tokens, each.first_row, max(0, each.batch_row - by(each)), each.n_rows)
            for each in original(*given)
        )

    rows.split_rows = split


@fault
def neighbours_rows() -> None:
    """A prompt's rows are looked for one row too early: the first is the request's before it."""
    shift_rows(lambda each: 1)


@fault
def neighbours_states() -> None:
    """Ids are right, but states lie one row further: the first row is the request's before it."""
    original = capture.Capture._named_tensors

    def named(*given: Any) -> Any:
        tensors = original(*given)
        return {name: each.roll(1, 0) if each.is_floating_point() else each for name, each in tensors.items()}

    capture.Capture._named_tensors = named


@fault
def first_rows_for_all() -> None:
    """Every request gets the rows at the batch's beginning."""
    shift_rows(lambda each: each.batch_row)


@fault
def lost_chunk() -> None:
    """The rows of a prompt's second chunk are never handed over."""
    original = capture.Capture._hand_over

    def hand_over(self: Any, request: Any, tensors: Any, deadline: float) -> None:
        if request.first_row != 16:
            original(self, request, tensors, deadline)

    capture.Capture._hand_over = hand_over


@fault
def unwritten_chunk() -> None:
    """A second chunk counts as written, but was not."""
    original = Part.write_rows

    def write_rows(self: Any, slot: str, first_row: int, data: Any) -> None:
        if first_row != 16 or slot == "input_ids":
            original(self, slot, first_row, data)

    Part.write_rows = write_rows


@fault
def missing_stage() -> None:
    """An earlier stage drops what it captured."""
    engine.stage = lambda *given: None


@fault
def stage_without_its_layer() -> None:
    """A stage arms one layer less than it owns."""
    original = arming.arm_backbone

    def arm(backbone: Any, config: Any, *rest: Any) -> Any:
        own = original(backbone, config, *rest)
        own = own[:-1] if len(own) > 1 else own
        backbone.module.layers_to_capture = list(own)
        return own

    arming.arm_backbone = arm


def change_copies(change: Callable[[Any], Any]) -> None:
    original = capture.copy_to_host
    capture.copy_to_host = lambda tensor: original(change(tensor) if tensor.is_floating_point() else tensor)


@fault
def nan() -> None:
    """One value is no number."""

    def spoil(tensor: Any) -> Any:
        tensor = tensor.clone()
        tensor[-1, -1] = float("nan")
        return tensor

    change_copies(spoil)


@fault
def lower_precision() -> None:
    """States go through bfloat16."""
    change_copies(lambda tensor: tensor.bfloat16().float())


def after_sealing(change: Callable[[int], None]) -> None:
    original = Part.seal

    def seal(self: Any) -> None:
        handle = os.dup(self._handle)
        original(self)
        change(handle)
        os.close(handle)

    Part.seal = seal


@fault
def truncated_file() -> None:
    """A part loses its end after it was finished."""
    after_sealing(lambda handle: os.ftruncate(handle, os.fstat(handle).st_size - 100))


@fault
def flipped_bit() -> None:
    """A part changes after it was finished."""

    def flip(handle: int) -> None:
        place = os.fstat(handle).st_size - 3
        os.pwrite(handle, bytes([os.pread(handle, 1, place)[0] ^ 4]), place)

    after_sealing(flip)


@fault
def swapped_requests() -> None:
    """Requests are noted in another order than their rows."""
    original = rows.note_requests

    def note(requests: Any) -> Any:
        noted = original(requests)
        return tuple(rows.NotedRequest(other.rid, other.n_tokens) for other in reversed(noted))

    rows.note_requests = note


@server_fault
def forward_raises() -> None:
    """The model fails on a real prompt; the token of a health check passes."""
    edit_loop(LOOP, f"{LOOP}\n    if len(input_ids) > 3: raise RuntimeError('injected: the forward failed')")


@server_fault
def forward_hangs() -> None:
    """The model never comes back from a real prompt."""
    llama.time = time
    hang = "print('injected: the forward hangs', flush=True); time.sleep(600)"
    edit_loop(LOOP, f"{LOOP}\n    if len(input_ids) > 3: {hang}")


@server_fault
def memory_runs_out() -> None:
    """A real prompt wants more memory than any machine has."""
    edit_loop(LOOP, f"{LOOP}\n    if len(input_ids) > 3: torch.empty(1 << 60)")


@server_fault
def answers_500() -> None:
    """The HTTP server fails on every request of an extraction."""
    original = TokenizerManager.generate_request

    def generate(self: Any, request: Any, *rest: Any) -> Any:
        if str(request.rid).startswith("aux1-"):
            raise RuntimeError("injected: the request failed")
        return original(self, request, *rest)

    TokenizerManager.generate_request = generate


FAULTS[os.environ["INJECTED_FAULT"]]()
