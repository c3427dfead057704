"""A decoder loop without capture code: when a line at its top takes what enters each block."""

import pytest

from auxtap.tests.shaped import fixture
from auxtap.tests.tracer.reading.sources import read, read_one, reason_of

SUM = fixture("loop", "sum.before").decode()


def test_the_names_that_the_line_is_given() -> None:
    reading = read_one(SUM)
    assert (reading.kind, reading.objections) == ("loop", ()) and reading.residual == "residual"
    whole = read_one(fixture("loop", "whole.before").decode())
    assert whole.kind == "loop" and not whole.objections and whole.residual is None


def test_a_state_that_is_changed_before_the_block_is_not_what_the_line_would_take() -> None:
    reading = read_one(SUM)
    lines = SUM.split("\n")
    line = lines[reading.first_line - 1]
    indentation = line[: len(line) - len(line.lstrip())]
    lines.insert(reading.first_line - 1, f"{indentation}{reading.hidden} = {reading.hidden} * 2")
    assert "what is taken is changed before it enters the block" in reason_of("\n".join(lines))
    lines[reading.first_line - 1] = f"{indentation}rows = {reading.hidden}.shape[0]"
    assert reason_of("\n".join(lines)) == ""


HEAD = """
class AForCausalLM:
    def __init__(self, config):
        self.model = {backbone}(config)
        self.capture_aux_hidden_states = False

    def forward(self, input_ids, positions, forward_batch):
        hidden_states = self.model(input_ids, positions, forward_batch)
        aux_hidden_states = None
        if self.capture_aux_hidden_states:
            hidden_states, aux_hidden_states = hidden_states
        return self.logits_processor(input_ids, hidden_states, self.lm_head, forward_batch, aux_hidden_states)
"""
STATE, UNPACKED = "input_ids, hidden_states, self.lm_head", "hidden_states, aux_hidden_states = hidden_states\n"
BACK = " " * 8


def with_head(old: str = "", new: str = "") -> str:
    assert not old or HEAD.count(old) == 1
    return HEAD.replace(old, new) if old else HEAD


def test_a_head_that_hands_on_what_it_unpacks_is_not_spoken_of() -> None:
    assert read_one(SUM + with_head()).kind == "loop"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (STATE, STATE.replace("states,", "states.float(),"), "the final state is scaled"),
        (STATE, STATE.replace("states,", "states / self.width,"), "the final state is scaled"),
        (UNPACKED, f"{UNPACKED}{BACK}hidden_states = hidden_states * self.scale\n", "the final state is scaled"),
        (UNPACKED, f"{UNPACKED}{BACK}aux_hidden_states = aux_hidden_states[::-1]\n", "done to the captured states"),
        (UNPACKED, f"{UNPACKED}{BACK}aux_hidden_states[0].zero_()\n", "done to the captured states"),
        (UNPACKED, "aux_hidden_states, hidden_states = hidden_states\n", "done to the captured states"),
    ],
)
def test_objects_to_what_a_head_does_to_the_states(old: str, new: str, reason: str) -> None:
    source = SUM + with_head(old, new)

    found = read(source)
    assert [each.kind for each in found.readings] == ["loop", "head"]
    assert reason in found.readings[1].objections[0].reason
    assert not found.usable("loop"), "the file's own head hands on another state"
