"""When an entry of a layer list is the capture index of a state that stays as it was, and when not."""

import pytest

from auxtap.rewriters.backbones import survey_backbones

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
KEPT_FIRST = FIRST.replace(SUM, "hidden_states")
INDENT = "\n                "

BEHIND = "behind the block: an entry of its list is not a capture index"
CHANGED = "what it captures behind a block is changed before the next one"
EARLY = "before the end of a round"
KEPT = "it keeps a tensor that later blocks may write over"
NO_FIRST = "nothing before the loop takes what enters its first one"
OBJECTIONS = {
    "behind the block": (AT_THE_END, "i + 1 in", "i in", BEHIND),
    "two further": (AT_THE_END, "i + 1 in", "i + 2 in", "it tests i + 2 in self.layers_to_capture"),
    "counted otherwise": (AT_THE_TOP, "i in self", "i - 1 in self", "it tests i - 1 in self.layers_to_capture"),
    "the next one's number at the top": (AT_THE_TOP, "i in self", "i + 1 in self", EARLY),
    "no first": (AT_THE_END, FIRST, "", NO_FIRST),
    "another first": (AT_THE_END, "if self.start_layer in", "if self.end_layer in", NO_FIRST),
    "a first that is kept": (AT_THE_END, FIRST, KEPT_FIRST, NO_FIRST),
    "a first that fills another": (AT_THE_END, FIRST, FIRST.replace("aux_hidden", "first"), NO_FIRST),
    "changed behind the capture": (AT_THE_END, END, f"{INDENT[1:]}hidden_states += 1\n{END}", EARLY),
    "changed before the block": (AT_THE_END, FETCH, f"{FETCH}{INDENT}hidden_states = a(hidden_states)", CHANGED),
    "changed in place": (AT_THE_END, FETCH, f"{FETCH}{INDENT}hidden_states += deep[i]", CHANGED),
    "a kept tensor": (AT_THE_TOP, "hidden_states + residual)", "hidden_states)", KEPT),
    "a kept tensor at the end": (AT_THE_END, CAPTURE, CAPTURE.replace(SUM, "hidden_states"), KEPT),
    "two calls of a block": (AT_THE_END, BLOCK, f"{BLOCK}{INDENT}{BLOCK}", EARLY),
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
