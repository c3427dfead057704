"""When an entry of a layer list is the capture index of a state that stays as it was, and when not."""

import pytest

from auxtap.rewriters.backbones.backbones import survey_backbones

# What enters each block, taken at the top of its round.
AT_THE_TOP = """
class AModel:
    def forward(self, input_ids, positions, forward_batch: ForwardBatch, pp_proxy_tensors=None):
        hidden_states = self.embed_tokens(input_ids)
        residual = None
        aux_hidden_states = []
        for i in range(self.start_layer, self.end_layer):
            if i in self.layers_to_capture:
                aux_hidden_states.append(hidden_states + residual)
            hidden_states, residual = self.layers[i](positions, hidden_states, forward_batch, residual)
        return hidden_states, aux_hidden_states
"""
# The same states, taken where the block before ends; a stage's first one before the loop.
AT_THE_END = """
class AModel:
    def forward(self, input_ids, positions, forward_batch: ForwardBatch, pp_proxy_tensors=None):
        hidden_states = self.embed_tokens(input_ids)
        residual = None
        aux_hidden_states = []
        if self.start_layer in self.layers_to_capture:
            aux_hidden_states.append(hidden_states + residual if residual is not None else hidden_states)
        for i in range(self.start_layer, self.end_layer):
            with recorder.with_current_layer(i):
                layer = self.layers[i]
                hidden_states, residual = layer(positions, hidden_states, forward_batch, residual)
                if i + 1 in self.layers_to_capture:
                    aux_hidden_states.append(hidden_states + residual if residual is not None else hidden_states)
        return hidden_states, aux_hidden_states
"""
FIRST = AT_THE_END[AT_THE_END.index("        if self.start_layer") : AT_THE_END.index("        for i in")]
BLOCK = "hidden_states, residual = layer(positions, hidden_states, forward_batch, residual)"
NEXT = "if i + 1 in self.layers_to_capture:"
FETCH = "layer = self.layers[i]"
SUM, END = "hidden_states + residual if residual is not None else hidden_states", "        return hidden_states, aux"
CAPTURE = f"                {NEXT}\n                    aux_hidden_states.append({SUM})"
INDENT = "\n                "

CALL = "self.layers[i](positions, hidden_states, forward_batch, residual)"
TOP_CALL = f"            hidden_states, residual = {CALL}"
RANGE = "range(self.start_layer, self.end_layer)"

BEHIND = "behind the block: an entry of its list is not a capture index"
CHANGED = "what it captures is changed before it enters the block"
KEPT = "it keeps a tensor that later blocks may write over"
NOT_NEXT = "what enters that one, or a stage's first, may be something else"
OBJECTIONS = {
    "behind the block": (AT_THE_END, "i + 1 in", "i in", BEHIND),
    "two further": (AT_THE_END, "i + 1 in", "i + 2 in", "it tests i + 2 in self.layers_to_capture"),
    "counted otherwise": (AT_THE_TOP, "i in self", "i - 1 in self", "it tests i - 1 in self.layers_to_capture"),
    "a kept tensor": (AT_THE_TOP, "hidden_states + residual)", "hidden_states)", KEPT),
    "bound anew before the block": (AT_THE_TOP, TOP_CALL, f"            residual = a(residual)\n{TOP_CALL}", CHANGED),
    "added to before the block": (AT_THE_TOP, TOP_CALL, f"            hidden_states += deep[i]\n{TOP_CALL}", CHANGED),
    "a block left out": (
        AT_THE_TOP,
        TOP_CALL,
        f"            if i in skipped:\n                continue\n{TOP_CALL}",
        CHANGED,
    ),
    "the next one's number at the top": (AT_THE_TOP, "i in self", "i + 1 in self", NOT_NEXT),
}
# What is done to the form that is taken at the end of a round; each must be refused.
NOT_TAKEN = {
    "no first": (FIRST, ""),
    "another first": ("if self.start_layer in", "if self.end_layer in"),
    "a first that is kept": (FIRST, FIRST.replace(SUM, "hidden_states")),
    "a first that fills another": (FIRST, FIRST.replace("aux_hidden", "first")),
    "a first that fills nothing": (FIRST, f"{FIRST.splitlines()[0]}\n            pass\n"),
    "a first of another value": (FIRST, FIRST.replace(SUM, "self.embed_tokens(input_ids)")),
    "a first with another way": (FIRST, f"{FIRST}        else:\n            aux_hidden_states.append(residual)\n"),
    "a first taken twice": (FIRST, FIRST + FIRST.splitlines()[1] + "\n"),
    "changed behind the first": (FIRST, f"{FIRST}        hidden_states = self.embed_norm(hidden_states)\n"),
    "changed behind the capture": (END, f"{INDENT[1:]}hidden_states += 1\n{END}"),
    "changed before the block": (FETCH, f"{FETCH}{INDENT}hidden_states = a(hidden_states)"),
    "changed in place": (FETCH, f"{FETCH}{INDENT}hidden_states += deep[i]"),
    "changed by a method": (FETCH, f"{FETCH}{INDENT}hidden_states.add_(deep[i])"),
    "changed in part": (FETCH, f"{FETCH}{INDENT}hidden_states[:, :4] += deep[i]"),
    "changed before the capture": (NEXT, f"hidden_states.mul_(2){INDENT}{NEXT}"),
    "changed on its way into the block": ("layer(positions, hidden_states", "layer(positions, self.pre(hidden_states)"),
    "a round that may end early": (FETCH, f"{FETCH}{INDENT}if i in skipped:{INDENT}    continue"),
    "a block on one way": (BLOCK, f"if i < n:{INDENT}    {BLOCK}"),
    "another count": (RANGE, "range(len(self.layers))"),
    "another's count": (RANGE, "range(self.draft.start_layer, self.draft.end_layer)"),
    "taken twice": (
        FETCH,
        f"{FETCH}{INDENT}if i in self.layers_to_capture:{INDENT}    aux_hidden_states.append({SUM})",
    ),
    "a kept tensor": (CAPTURE, CAPTURE.replace(SUM, "hidden_states")),
    "another's copy": (CAPTURE, CAPTURE.replace(SUM, "self.buffer.clone()")),
    "the residual alone": (CAPTURE, CAPTURE.replace(SUM, "residual.clone()")),
    "two calls of a block": (BLOCK, f"{BLOCK}{INDENT}{BLOCK}"),
}


@pytest.mark.parametrize("source", [AT_THE_TOP, AT_THE_END])
def test_both_places_take_what_enters_a_block(source: str) -> None:
    survey = survey_backbones(source.encode())
    assert [capture.scope for capture in survey.captures] == ["AModel.forward"] and not survey.refused


@pytest.mark.parametrize("case", OBJECTIONS)
def test_objects(case: str) -> None:
    source, old, new, objection = OBJECTIONS[case]
    assert source.count(old) == 1, "the change must be made"
    survey = survey_backbones(source.replace(old, new).encode())
    assert not survey.captures and objection in survey.refused["AModel"]


@pytest.mark.parametrize("case", NOT_TAKEN)
def test_objects_to_what_is_not_the_next_input(case: str) -> None:
    old, new = NOT_TAKEN[case]
    assert AT_THE_END.count(old) == 1, "the change must be made"
    survey = survey_backbones(AT_THE_END.replace(old, new).encode())
    assert not survey.captures and NOT_NEXT in survey.refused["AModel"]
