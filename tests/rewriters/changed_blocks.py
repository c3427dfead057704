"""What may be done otherwise where the collector is handed into the block, or the sum is gathered."""

import re

from auxtap.tests.rewriters.changed_forwards import APPEND, LAST, RETURN
from auxtap.tests.rewriters.changes import both, lines, swap
from auxtap.tests.rewriters.drifts import Change

# In deepseek_v2 of 0.5.9.
GATHER = """tensor_model_parallel_all_gather(
                            hidden_states + residual, dim=0
                        )"""
DEEPSEEK: dict[str, Change] = {
    "gather of the norm": swap(GATHER, "tensor_model_parallel_all_gather(self.norm(hidden_states + residual), dim=0)"),
    "gather over the columns": swap(GATHER, "tensor_model_parallel_all_gather(hidden_states + residual, dim=1)"),
    "gather over the last": swap(GATHER, "tensor_model_parallel_all_gather(hidden_states + residual, dim=-1)"),
    "gather of the hidden state": swap(GATHER, "tensor_model_parallel_all_gather(hidden_states.clone(), dim=0)"),
    "gather of a copy, not of the sum": swap(GATHER, "tensor_model_parallel_all_gather(residual, dim=0)"),
    "no gather": swap(GATHER, "hidden_states + residual"),
    "gathered twice": swap(GATHER, f"tensor_model_parallel_all_gather({GATHER}, dim=0)"),
    "gathered state scaled": swap(
        "aux_hidden_states.append(aux_hidden_state)", "aux_hidden_states.append(aux_hidden_state.mul_(2))"
    ),
    "gather of all layers": swap("and i > self.first_k_dense_replace", "or i > self.first_k_dense_replace"),
    "gather one layer early": swap("i > self.first_k_dense_replace", "i >= self.first_k_dense_replace"),
    "copy without the residual": swap(APPEND, "aux_hidden_states.append(hidden_states.clone())"),
    "start at 0": swap("normal_start_layer = self.start_layer", "normal_start_layer = 0"),
    "start behind the first": swap(
        "normal_start_layer = self.start_layer", "normal_start_layer = self.start_layer + 1"
    ),
    "end one early": swap("normal_end_layer = self.end_layer", "normal_end_layer = self.end_layer - 1"),
    "branches turned": swap("if self.enable_a2a_moe and", "if not self.enable_a2a_moe and"),
}
# In the blocks of releases that hand the collector in, up to 0.5.20.
HANDED = "captured_last_layer_outputs=captured_last_layer_outputs,"
BLOCKS: dict[str, Change] = {
    "block drops the collector": swap(HANDED, "captured_last_layer_outputs=None,"),
    "block does not hand it on": swap(HANDED, ""),
    "block takes the hidden state": both(
        swap(
            "hidden_states, residual = (",
            (
                "if captured_last_layer_outputs is not None:\n"
                "    captured_last_layer_outputs.append(hidden_states)\n"
                "hidden_states, residual = ("
            ),
        ),
        swap(HANDED, ""),
    ),
    "block takes a second time": lines(
        r"hidden_states, residual = self\.layer_communicator\.prepare_mlp",
        "if captured_last_layer_outputs is not None:\n    captured_last_layer_outputs.append(residual.clone())",
    ),
    "block norms first": lines(r"hidden_states, residual = \($", "hidden_states = self.input_layernorm(hidden_states)"),
    "block scales first": lines(r"hidden_states, residual = \($", "hidden_states.mul_(2)"),
    "block scales the residual first": lines(
        r"hidden_states, residual = \($", "residual = residual if residual is None else residual * 2"
    ),
    "block hands on under a test": swap(
        HANDED, "captured_last_layer_outputs=captured_last_layer_outputs if self.layer_id > 2 else None,"
    ),
    "block swaps the two": swap(
        "hidden_states,\n                residual,\n                forward_batch,",
        "residual,\n                hidden_states,\n                forward_batch,",
    ),
    "block gives the last state away": lines(
        r"hidden_states, residual = self\.layer_communicator\.prepare_mlp",
        "if captured_last_layer_outputs:\n    captured_last_layer_outputs[-1].mul_(2)",
    ),
    "block clears it": lines(
        r"hidden_states, residual = self\.layer_communicator\.prepare_mlp",
        "if captured_last_layer_outputs:\n    captured_last_layer_outputs.pop()",
    ),
}
# Two ways through a block of which one forgets the collector, as a fork has them.
FAST = "get_global_server_args().fast_path"
FIRST = r"hidden_states, residual = \($"
FORKED: dict[str, Change] = {
    "a fast way that leaves first": lines(FIRST, f"if {FAST}:\n    return self.mlp(hidden_states), residual"),
    "a fast way through another method": both(
        lines(
            r"def forward\($",
            (
                "def fast(self, hidden_states, residual, forward_batch):\n"
                "    if residual is None:\n"
                "        residual = hidden_states.clone()\n"
                "    return self.mlp(hidden_states), residual\n"
            ),
        ),
        lines(FIRST, f"if {FAST}:\n    return self.fast(hidden_states, residual, forward_batch)"),
    ),
    "a fast way that prepares without it": swap(
        HANDED, f"captured_last_layer_outputs=None if {FAST} else captured_last_layer_outputs,"
    ),
    "a fast way that captures the residual alone": lines(
        FIRST,
        (
            f"if {FAST} and captured_last_layer_outputs is not None:\n"
            "    captured_last_layer_outputs.append(residual.clone())\n"
            "    captured_last_layer_outputs = None"
        ),
    ),
}
IN_COMMUNICATOR: dict[str, Change] = {
    "communicator takes the normed state": swap(
        "captured_last_layer_outputs.append(gathered_last_layer_output)",
        "captured_last_layer_outputs.append(hidden_states)",
    ),
    "communicator does not copy": swap("gathered_last_layer_output = residual.clone()", "pass"),
    "communicator copies the hidden state": swap(
        "gathered_last_layer_output = residual.clone()", "gathered_last_layer_output = hidden_states.clone()"
    ),
    "communicator scales what it takes": swap(
        "gathered_last_layer_output = residual.clone()", "gathered_last_layer_output = residual.clone().mul_(2)"
    ),
    "communicator takes twice": swap(
        "captured_last_layer_outputs.append(gathered_last_layer_output)",
        "captured_last_layer_outputs.extend([gathered_last_layer_output] * 2)",
    ),
}
CALLS: dict[str, Change] = {
    "collector handed in always": lambda text: re.sub(
        r"aux_hidden_states\s+if [^\n]+\s+else None", "aux_hidden_states", text, count=1
    ),
    "collector never handed in": lambda text: re.sub(
        r"aux_hidden_states\s+if [^\n]+\s+else None", "None", text, count=1
    ),
    "handed in the other way round": lambda text: re.sub(
        r"aux_hidden_states\s+if ([^\n]+)\s+else None", r"None if \1 else aux_hidden_states", text, count=1
    ),
    "another collector handed in": lambda text: re.sub(
        r"aux_hidden_states(\s+if [^\n]+\s+else None)", r"[]\1", text, count=1
    ),
    "block given more": lambda text: re.sub(r"(positions,\s+hidden_states)(,\s+forward_batch,)", r"\1 * 2\2", text),
}
# From 0.5.21 on: the collector's bound method, and the boundary.
CAPTURE = "capture=capture_output"
BOUNDARIES: dict[str, Change] = {
    "block drops the capture": swap(f", {CAPTURE}", ""),
    "boundary behind attention captures": both(
        swap(f", {CAPTURE}", ""),
        swap(
            "self.ffn_boundary.prepare(hidden_states, forward_batch)",
            f"self.ffn_boundary.prepare(hidden_states, forward_batch, {CAPTURE})",
        ),
    ),
    "boundary before the FFN is asked": swap("self.attn_boundary.prepare(", "self.ffn_boundary.prepare("),
    "block takes the normed input": both(
        swap(f", {CAPTURE}", ""),
        lines(
            r"hidden_states = self\.self_attn\(", "if capture_output is not None:\n    capture_output(hidden_states)"
        ),
    ),
    "block takes what it is given": both(
        swap(f", {CAPTURE}", ""),
        lines(
            r"hidden_states = self\.attn_boundary\.prepare",
            "if capture_output is not None:\n    capture_output(hidden_states)",
        ),
    ),
    "block owns what it takes": swap(
        CAPTURE, "capture=(lambda state, owned=False: capture_output(state, owned=True)) if capture_output else None"
    ),
    "block takes at its end": both(
        swap(f", {CAPTURE}", ""),
        lambda text: re.sub(
            r"return (self\.ffn_boundary\.finish\(hidden_states, forward_batch\))",
            (
                r"hidden_states = \1\n"
                r"        if capture_output is not None:\n"
                r"            capture_output(hidden_states)\n"
                r"        return hidden_states"
            ),
            text,
        ),
    ),
    "block scales first": lines(r"hidden_states = self\.attn_boundary\.prepare", "hidden_states.mul_(2)"),
    "capture under a test": swap(CAPTURE, "capture=capture_output if hidden_states.shape[0] > 2 else None"),
    "capture wrapped": swap(
        CAPTURE, "capture=capture_output and (lambda state, **named: capture_output(state * 2, **named))"
    ),
}
BOUND = "capture_output=aux_hidden_states.capture"
COLLECTING: dict[str, Change] = {
    "a plain list": swap("AuxHiddenStateList()", "[]"),
    "append handed in": swap(BOUND, "capture_output=aux_hidden_states.append"),
    "insert handed in": swap(
        BOUND, "capture_output=lambda state, owned=False: aux_hidden_states.insert(0, state.clone())\n                "
    ),
    "another collector": swap(BOUND, "capture_output=AuxHiddenStateList().capture"),
    "one layer later": swap("if i in self.layers_to_capture", "if i + 1 in self.layers_to_capture"),
    "not in": swap("if i in self.layers_to_capture", "if i not in self.layers_to_capture"),
    "turned before the length": lines(LAST, "aux_hidden_states.reverse()"),
    "comprehension before the length": lines(LAST, "aux_hidden_states = [each * 2 for each in aux_hidden_states]"),
    "cleared before the length": lines(LAST, "aux_hidden_states.clear()"),
    "turned on the way out": swap(RETURN, "return hidden_states, list(reversed(aux_hidden_states))"),
    "scaled in place": lines(LAST, "for each in aux_hidden_states:\n    each *= 2"),
    "two names": both(
        swap(
            "aux_hidden_states = AuxHiddenStateList()",
            "aux_hidden_states, other = AuxHiddenStateList(), AuxHiddenStateList()",
        ),
        swap(BOUND, "capture_output=other.capture"),
    ),
}
IN_COLLECTOR: dict[str, Change] = {
    "collector keeps what it is lent": swap("hidden if owned else hidden.clone()", "hidden"),
    "collector owns the other way": swap("hidden if owned else hidden.clone()", "hidden.clone() if owned else hidden"),
    "collector takes in front": swap(
        "self.append(hidden if owned else hidden.clone())", "self.insert(0, hidden.clone())"
    ),
    "collector scales": swap("hidden.clone())", "hidden.clone() * 2)"),
}
IN_BOUNDARY: dict[str, Change] = {
    "boundary takes the input": swap(
        "value = stream.residual\n            move = entry.capture_move",
        "value = hidden_states\nmove = entry.capture_move",
    ),
    "boundary gives it away as owned": swap(
        "owned=entry.capture_move_allocates", "owned=True or entry.capture_move_allocates"
    ),
    "boundary scales": swap("capture(\n                value,", "capture(\n    value * 2,"),
    "boundary takes before the read": swap(
        "capture_before_read = capture is not None and (",
        "capture_before_read = capture is not None and hidden_states.shape[0] > 2 and (",
    ),
    "boundary never takes": swap(
        "if capture is not None and not capture_before_read:", "if capture is not None and capture_before_read:"
    ),
}
