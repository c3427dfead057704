"""The canary's checks on made-up states: each has a right case and the wrong one it is there for."""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from auxtap.extraction.canary import witness_reports as witness
from auxtap.extraction.canary.output_head import NoHeadError, find_head
from auxtap.extraction.canary.run import cut_prompts
from auxtap.extraction.canary.state_checks import (
    FAILED,
    OK,
    SKIPPED,
    Check,
    TokenLogprobs,
    check_distinct,
    check_growth,
    check_logits,
    check_ranks,
    check_rows,
    compare_prompts,
    judge_difference,
)
from auxtap.extraction.canary.stored_states import PromptStates, Rows, depth, numbers

HIDDEN, VOCABULARY = 256, 20
DICE = np.random.default_rng(3)
STATES = ("hidden.2", "hidden.9", "final")


def prompt(index: int = 0, n_tokens: int = 6, **changes: Rows) -> PromptStates:
    stream = DICE.standard_normal((n_tokens, HIDDEN)).astype(np.float32)
    deeper = stream + DICE.standard_normal((n_tokens, HIDDEN)).astype(np.float32)
    rows = {"hidden.2": stream, "hidden.9": deeper, "final": deeper * np.float32(0.7), **changes}
    return PromptStates(index, tuple(range(n_tokens)), rows, {name: each.tobytes() for name, each in rows.items()})


def changed(one: PromptStates, **rows: Rows) -> PromptStates:
    every = {**one.rows, **rows}
    return PromptStates(one.index, one.ids, every, {name: each.tobytes() for name, each in every.items()})


def test_rows_are_counted_and_finite() -> None:
    one = prompt()
    wanted: Mapping[int, Sequence[int]] = {0: range(6)}
    assert check_rows([one], wanted, STATES) == Check("rows", OK, "6 rows in each of 3 states of 1 prompts")
    assert "ids are not those" in check_rows([one], {0: [5, 4]}, STATES).detail
    assert "hidden.4 has none rows" in check_rows([one], wanted, ["hidden.4"]).detail
    assert check_rows([changed(one, final=one.rows["final"][:5])], wanted, STATES).outcome == FAILED
    spoiled = one.rows["final"].copy()
    spoiled[3, 3] = np.inf
    assert "no numbers" in check_rows([changed(one, final=spoiled)], wanted, STATES).detail


@pytest.mark.parametrize(("dtype", "noise", "outcome"), [("F32", 1e-6, OK), ("F32", 1e-3, FAILED), ("BF16", 1e-2, OK)])
def test_a_difference_is_held_against_the_dtype(dtype: str, noise: float, outcome: str) -> None:
    one = prompt()
    other = changed(one, final=one.rows["final"] * np.float32(1 + noise))
    assert judge_difference("batches", compare_prompts([(one, other)]), dtype, "two runs").outcome == outcome


def test_one_foreign_row_is_seen_whatever_the_dtype_and_named() -> None:
    one = prompt(n_tokens=400)
    rows = one.rows["hidden.9"].copy()
    rows[17] = rows[18]
    check = judge_difference(
        "batches", compare_prompts([(one, changed(one, **{"hidden.9": rows}))]), "BF16", "two runs"
    )
    assert check.outcome == FAILED
    assert "prompt 0 hidden.9 row 17" in check.detail


def test_only_the_rows_that_are_asked_for_are_compared() -> None:
    one = prompt()
    rows = one.rows["final"].copy()
    rows[5] = 0
    assert compare_prompts([(one, changed(one, final=rows))], {0: 5}).whole == 0
    assert compare_prompts([(one, changed(one, final=rows))]).whole > 0.1


def test_equal_states_are_seen() -> None:
    one = prompt()
    assert check_distinct([one]).outcome == OK
    same = changed(one, **{"hidden.9": one.rows["hidden.2"]})
    assert check_distinct([same]).detail.startswith("hidden.2 and hidden.9 of prompt 0 are the same state")


def test_a_stream_that_does_not_go_on_is_seen() -> None:
    one = prompt(n_tokens=200)
    assert check_growth([one]).outcome == OK
    unrelated = DICE.standard_normal((200, HIDDEN)).astype(np.float32)
    unrelated -= (
        one.rows["hidden.2"] * ((unrelated * one.rows["hidden.2"]).sum(1) / (one.rows["hidden.2"] ** 2).sum(1))[:, None]
    )
    assert "residual missing?" in check_growth([changed(one, **{"hidden.9": unrelated})]).detail
    assert check_growth([changed(one, **{"hidden.9": one.rows["hidden.9"] * np.float32(0.1)})]).outcome == FAILED
    assert "zero" in check_growth([changed(one, **{"hidden.2": one.rows["hidden.2"] * 0})]).detail


def told_by_rank(one: PromptStates, tp: int = 1) -> witness.WitnessReport:
    digests = {name: witness.digest_bytes("sha256", data) for name, data in one.data.items()}
    squares = {name: float(np.square(rows.astype(np.float64)).sum()) for name, rows in one.rows.items()}
    return witness.WitnessReport(one.index, tp, len(one.ids), digests, squares)


def test_ranks_are_compared() -> None:
    one = prompt()
    assert check_ranks([one], [], 0, 1, "F32").outcome == SKIPPED
    assert "equal to the last bit" in check_ranks([one], [told_by_rank(one)], 1, 1, "F32").detail
    assert (
        check_ranks([one], [told_by_rank(one)], 3, 1, "F32").detail == "1 of 3 witness reports came: ranks are missing"
    )
    assert check_ranks([one], [], 3, 1, "F32", several_hosts=True).outcome == SKIPPED
    partial = changed(one, **{"hidden.9": one.rows["hidden.9"] * np.float32(0.6)})
    check = check_ranks([one], [told_by_rank(partial)], 1, 1, "BF16")
    assert check.outcome == FAILED
    assert "rank 1 has another hidden.9 of prompt 0" in check.detail
    close = changed(one, **{"hidden.9": one.rows["hidden.9"] * np.float32(1 + 1e-7)})
    assert check_ranks([one], [told_by_rank(close)], 1, 1, "F32").outcome == OK


def checkpoint(folder: Path, head: Rows, name: str = "lm_head.weight", **config: object) -> Path:
    entry = {"dtype": "F32", "shape": list(head.shape), "data_offsets": [0, head.nbytes]}
    header = json.dumps({name: entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + head.tobytes())
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def likeliest(logits: Rows, row: int) -> TokenLogprobs:
    shifted = logits[row] - np.log(np.exp(logits[row].astype(np.float64)).sum())
    return TokenLogprobs(0, row, {int(token): float(shifted[token]) for token in np.argsort(-logits[row])[:5]})


def test_the_head_gives_the_logprobs_of_the_right_state_only(tmp_path: Path) -> None:
    one = prompt()
    weights = DICE.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32) * np.float32(0.1)
    head = find_head(checkpoint(tmp_path, weights))
    logits: Rows = one.rows["final"] @ weights.T
    said = [likeliest(logits, row) for row in range(6)]
    assert check_logits([one], said, head, "F32").outcome == OK
    before_norm = changed(one, final=one.rows["hidden.9"])
    assert "pre-norm?" in check_logits([before_norm], said, head, "F32").detail
    shifted = changed(one, final=np.roll(one.rows["final"], 1, axis=0))
    assert check_logits([shifted], said, head, "F32").outcome == FAILED
    assert check_logits([one], [], head, "F32").outcome == FAILED


def test_a_head_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    with pytest.raises(NoHeadError, match="no local checkpoint"):
        find_head(tmp_path)
    rows = np.zeros((VOCABULARY, HIDDEN), dtype=np.float32)
    tied = checkpoint(tmp_path, rows, "language_model.model.embed_tokens.weight", tie_word_embeddings=True)
    assert find_head(tied).name == "language_model.model.embed_tokens.weight"
    with pytest.raises(NoHeadError, match=r"holds no lm_head\.weight"):
        find_head(checkpoint(tmp_path, rows, "model.embed_tokens.weight", tie_word_embeddings=False))
    with pytest.raises(NoHeadError, match="final_logit_softcapping is 30"):
        find_head(checkpoint(tmp_path, rows, text_config={"final_logit_softcapping": 30.0}))


def test_numbers_of_every_dtype() -> None:
    values = np.array([1.5, -2.25, 3e8], dtype=np.float32)
    upper = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    assert np.allclose(numbers(upper, "BF16"), values, rtol=2**-8)
    assert np.array_equal(numbers(values.tobytes(), "F32"), values)
    assert sorted(["final", "hidden.10", "hidden.9"], key=depth) == ["hidden.9", "hidden.10", "final"]


def test_a_canary_run_is_recognised_by_the_tap() -> None:
    from auxtap.tap import protocol

    run = witness.new_canary_run()
    rid = protocol.parse_rid(f"aux1-{run}-0-1")
    assert rid is not None and protocol.is_canary(rid)
    assert not protocol.is_canary(protocol.RequestId("0123abcd", 0, 1))


@pytest.mark.parametrize(("chunk", "longest", "lengths"), [(16, 500, [24, 16]), (None, 500, []), (400, 500, [])])
def test_a_prompt_is_cut_for_certain_where_that_is_possible(
    chunk: int | None, longest: int, lengths: list[int]
) -> None:
    assert [len(ids) for ids in cut_prompts([[1, 2, 3]], chunk, longest)] == lengths
