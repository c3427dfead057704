"""A collector that is handed into the blocks: where it takes the state that entered, and what is objected to."""

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from auxtap.tests.tracer.blocks.small import BY_RESIDUAL, BY_STREAM, MODEL, MOVER, STAGE, STAGED, STREAM, read
from auxtap.tracer.blocks.handing import HandIn

BY_CALLBACK = replace(BY_STREAM, keyword="capture_output", method="capture")
HANDED = "collected=collected, **more)"
APPENDED = "collected.append(whole)"
READ = "        state, residual = self.read(state, residual, batch,"


def test_the_place_that_takes_is_named() -> None:
    reading = read(BY_RESIDUAL)
    assert reading.objections == ()
    assert [(line.scope, line.code) for line in reading.inside] == [("RowMover.read_and_collect", APPENDED)]


@pytest.mark.parametrize(
    ("hand_in", "code"),
    [
        (BY_STREAM, ["capture_gathered.capture(gathered, owned=entry.input_retainable)"]),
        (BY_CALLBACK, ["capture(value)", "capture(value, owned=entry.capture_move_allocates)"]),
    ],
)
def test_a_stream_in_the_batch_is_followed(hand_in: HandIn, code: list[str]) -> None:
    reading = read(hand_in)
    assert reading.objections == ()
    assert [line.code for line in reading.inside] == code


def test_what_a_picture_adds_is_not_taken() -> None:
    """A callback takes the sum before the addition; what is taken behind it would hold the addition too."""
    added = (*BY_STREAM.others, "extra")
    early = read(replace(BY_CALLBACK, others=added))
    assert early.objections == ()
    assert "capture(value + previous, owned=True)" in [line.code for line in early.inside]
    (objection,) = read(replace(BY_STREAM, others=added)).objections
    assert "something more is added" in objection.reason
    wrong = {STAGE: ("capture(value + previous, owned=True)", "capture(previous)")}
    (objection,) = read(replace(BY_CALLBACK, others=added), wrong).objections
    assert "residual is taken without" in objection.reason


def test_every_class_that_a_layer_may_have_is_read() -> None:
    twin = {MODEL: ('collected=more.get("collected", None)', 'collected=more.get("other", None)')}
    for name in ("SmallModel", "TableModel", "HandingModel"):
        named = replace(BY_RESIDUAL, class_name=name)
        assert read(named).objections == (), name
        (objection,) = read(named, twin).objections
        assert objection.at.scope == "TwinBlock.forward", name
    listed = replace(BY_RESIDUAL, class_name="ListModel")
    assert read(listed, twin).objections == ()


def test_layers_of_an_unknown_class() -> None:
    (objection,) = read(replace(BY_RESIDUAL, class_name="UnknownModel")).objections
    assert objection.reason == "which class its layers have cannot be told"


REFUSED: list[tuple[PurePosixPath, str, str, str]] = [
    # What is taken.
    (MOVER, APPENDED, "collected.append(state)", "through a norm or a layer"),
    (MOVER, APPENDED, "collected.append(whole * 2)", "not the state that entered"),
    (MOVER, APPENDED, "collected.append(whole.half())", ".half"),
    (MOVER, APPENDED, "collected.append(self.input_layernorm(whole))", "through a norm or a layer"),
    (MOVER, APPENDED, "collected.append(torch.zeros_like(whole))", "what it does with the stream"),
    (MOVER, "hidden_states=residual, batch=batch)", "hidden_states=state, batch=batch)", "its rows were not moved"),
    (
        MOVER,
        "            state = self.input_layernorm(state)\n",
        "            residual = self.input_layernorm(state)\n",
        "what is taken is not known",
    ),
    (
        MOVER,
        "            state, residual = self.input_layernorm(state, residual, post",
        "            state, _ = self.input_layernorm(state, residual, post",
        "residual is taken without",
    ),
    # How it is kept.
    (MOVER, "whole = residual.clone()", "pass", "neither copied nor storage of its own"),
    (MOVER, "whole = residual.clone()", "whole = residual.view(-1)", ".view"),
    (MOVER, "if whole is residual:", "if whole is state:", "its rows were not moved"),
    (MOVER, APPENDED, "collected.insert(0, whole)", ".insert"),
    (MOVER, APPENDED, "collected.append(whole)\n            collected.append(whole)", "a second state"),
    (MOVER, APPENDED, "collected += [whole]", "changed in place"),
    # Under which conditions.
    (MOVER, "if collected is not None:", "if collected:", "the collector has taken nothing"),
    (
        MOVER,
        "if collected is not None:",
        "if collected is not None and batch.is_decode:",
        "the collector has taken nothing",
    ),
    (MOVER, "if collected is not None:", "if collected is None:", "the collector has taken nothing"),
    (MOVER, READ, "        collected = None\n" + READ, "the collector has taken nothing"),
    (
        MOVER,
        "if state.shape[0] == 0:\n            residual",
        "if state.shape[0] == 1:\n            residual",
        "without the residual",
    ),
    # What was done to it before.
    (MOVER, READ, "        residual.add_(1)\n" + READ, ".add_"),
    (MOVER, READ, "        state *= 2\n" + READ, "changed in place"),
    (MOVER, READ, "        state[0] = 0\n" + READ, "written into"),
    (MOVER, READ, "        torch.nn.init.zeros_(state)\n" + READ, "what it does"),
    (
        MODEL,
        "        state, residual = self.mover.read_and_collect(state, residual, batch, coll",
        "        residual = None\n        state, residual = self.mover.read_and_collect(state, residual, batch, coll",
        "without the residual",
    ),
    (
        MODEL,
        "        state, residual = self.mover.read_and_collect(state, residual, batch, coll",
        "        for _ in range(2):\n            state = state + 1\n"
        "        state, residual = self.mover.read_and_collect(state, residual, batch, coll",
        "a form that is not known",
    ),
    # Rows that move between the ranks.
    (MOVER, "self._communicate_simple_fn(hidden_states=residual, batch=batch)", "residual", "its rows were not moved"),
    (
        MOVER,
        "    def same(hidden_states, batch):\n        return hidden_states",
        "    def same(hidden_states, batch):\n        return hidden_states * 2",
        "changes the rows",
    ),
    (
        MOVER,
        "attn_tp_all_gather_into_tensor(hidden_states, local)",
        "attn_tp_all_gather_into_tensor(local, hidden_states)",
        "what it does",
    ),
    (MOVER, "        return RowMoves.gathered", "        return other", "not known"),
    # Sums over the ranks that are owed.
    (
        MOVER,
        "elif residual is not None and state._sglang_needs_allreduce_fusion:",
        "elif residual is not None:",
        "although they have before",
    ),
    (
        MOVER,
        "            state, residual = self.input_layernorm.forward_with_allreduce_fusion(state, residual)",
        "            state, residual = self.input_layernorm(state, residual)",
        "have not summed it yet",
    ),
    (
        MOVER,
        "        if rank_context().input_scattered:",
        "        if not rank_context().input_scattered:",
        "what it does",
    ),
    (MOVER, "scatter_both(state, residual, self._context)", "scatter_both(residual, state, self._context)", "what"),
    # Where it goes.
    (MODEL, HANDED, "**more)", "the collector has taken nothing"),
    (
        MODEL,
        "        state = self.mlp(state)\n        return state, residual\n\n\nclass TwinBlock",
        "        collected.pop()\n        return state, residual\n\n\nclass TwinBlock",
        "used again",
    ),
    (
        MODEL,
        "        state = self.mlp(state)\n        return state, residual\n\n\nclass TwinBlock",
        "        collected[-1].mul_(2)\n        return state, residual\n\n\nclass TwinBlock",
        "used again",
    ),
    # What is around it.
    (MODEL, "class SmallBlock(nn.Module):", "@torch.compile\nclass SmallBlock(nn.Module):", "decorated"),
    (
        MODEL,
        "    def forward(self, positions, state, batch, residual, coll",
        "    @cached\n    def forward(self, positions, state, batch, residual, coll",
        "decorator",
    ),
    (
        MODEL,
        "class TwinBlock(SmallBlock):",
        "SmallBlock.forward = other\n\n\nclass TwinBlock(SmallBlock):",
        "binds anew",
    ),
    (MODEL, "        self.mover = RowMover(config.norm)\n", "        self.mover = config.mover\n", "what it does"),
    (MOVER, "    def read(self, state", "    @traced\n    def read(self, state", "decorated"),
]


@pytest.mark.parametrize(("path", "old", "new", "words"), REFUSED)
def test_what_is_not_known_is_objected_to(path: PurePosixPath, old: str, new: str, words: str) -> None:
    reading = read(BY_RESIDUAL, {path: (old, new)})
    assert reading.objections
    assert {words in objection.reason for objection in reading.objections} == {True}, reading


GATHERED = "capture=capture_output, capture_gathered=collected"
REFUSED_STAGED: list[tuple[PurePosixPath, str, str, str]] = [
    (STAGED, GATHERED, "capture=capture_output", "the collector has taken nothing"),
    (STAGED, GATHERED, "capture_gathered=None", "the collector has taken nothing"),
    (
        STAGED,
        "self.ffn_boundary.prepare(state, forward_batch)",
        "self.ffn_boundary.prepare(state, forward_batch, capture_gathered=collected)",
        "used again",
    ),
    (
        STAGED,
        "self.attn_boundary.prepare(\n            state",
        "self.ffn_boundary.prepare(\n            state",
        "what it does",
    ),
    (
        STAGED,
        "        state = self.attn_boundary.prepare(",
        "        before.zero_()\n        state = self.attn_boundary.prepare(",
        ".zero_",
    ),
    (
        STAGED,
        "        before = residual_access.buffer(state)",
        "        before = self.attention(positions, state, forward_batch)",
        "what it does",
    ),
    (STAGE, "            gathered = value if", "            gathered = state if", "through a norm or a layer"),
    (STAGE, "move(hidden_states=value, forward", "move(hidden_states=state, forward", "through a norm or a layer"),
    (
        STAGE,
        "capture_gathered.capture(gathered, owned=entry.input_retainable)",
        "capture_gathered.capture(gathered, owned=True)",
        "neither copied",
    ),
    (
        STAGE,
        "capture_gathered.capture(gathered, owned=entry.input_retainable)",
        "capture_gathered.append(gathered)",
        ".append",
    ),
    (STAGE, "        stream.write(residual)\n", "        stream.write(state)\n", "through a norm or a layer"),
    (STAGE, '            call["pending"] = stream.pending\n', "", "not told what is to be added"),
    (STAGE, '            call["written"] = True\n', "            pass\n", "not told what is to be added"),
    (
        STAGE,
        "        state, residual = stream.input(state)\n",
        "        residual, state = stream.input(state)\n",
        "not the sum",
    ),
    (
        STREAM,
        "        self.residual = residual\n        self.pending = None\n",
        "        self.residual = residual.abs()\n        self.pending = None\n",
        ".abs",
    ),
    (
        STREAM,
        "return self.pending.for_boundary(), self.residual",
        "return self.pending.for_boundary(), None",
        "not the sum",
    ),
]


@pytest.mark.parametrize(("path", "old", "new", "words"), REFUSED_STAGED)
def test_what_is_not_known_of_a_boundary(path: PurePosixPath, old: str, new: str, words: str) -> None:
    reading = read(BY_STREAM, {path: (old, new)})
    assert reading.objections
    assert {words in objection.reason for objection in reading.objections} == {True}, reading


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "            value = stream.residual\n            move = entry.capture_move",
            "            value = state\n            move = entry.capture_move",
            "through a norm",
        ),
        ("                    capture(value)\n", "                    capture(value, owned=True)\n", "neither copied"),
        ("        if capture is not None and not early:", "        if capture is not None:", "a second state"),
        (
            "                value = move(value, forward_batch=forward_batch)\n",
            "                pass\n",
            "its rows were not moved",
        ),
        ("            if early:", "            if not early:", ""),
        ("        if capture is not None and not early:", "        if capture is not None and early:", ""),
    ],
)
def test_what_is_not_known_of_a_callback(old: str, new: str, words: str) -> None:
    reading = read(BY_CALLBACK, {STAGE: (old, new)})
    assert reading.objections
    assert {words in objection.reason for objection in reading.objections} == {True}, reading
