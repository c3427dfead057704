"""Which rows belong to whom."""

from types import SimpleNamespace

import pytest

from auxtap.tap import rows
from auxtap.tap.protocol import RequestId
from auxtap.tap.rows import NotedRequest, RequestRows

A, B = RequestId("00000000", 0, 0), RequestId("00000000", 1, 0)


def _request(rid: str, n_tokens: int) -> SimpleNamespace:
    return SimpleNamespace(rid=rid, origin_input_ids=list(range(n_tokens)))


def test_a_batch_without_ours_is_noted_as_empty():
    assert rows.note_requests([_request("HEALTH_CHECK_0", 1), _request("x", 5)]) == ()


def test_foreign_requests_keep_their_place():
    noted = rows.note_requests([_request("x", 5), _request(str(A), 3)])
    assert noted == (NotedRequest(None, 5), NotedRequest(A, 3))
    assert rows.split_rows(noted, [5, 3], [0, 0]) == (RequestRows(A, 3, 0, 5, 3),)


def test_chunks_begin_at_their_prefix():
    assert rows.split_rows([NotedRequest(A, 30)], [6], [24]) == (RequestRows(A, 30, 24, 0, 6),)


def test_rows_beyond_the_prompt_are_clipped():
    """A retracted request is prefilled again together with the tokens that it had generated."""
    assert rows.split_rows([NotedRequest(A, 10)], [14], [0]) == (RequestRows(A, 10, 0, 0, 10),)


def test_decode_rows_of_a_mixed_batch_are_left_out():
    noted = (NotedRequest(A, 4), NotedRequest(B, 7))
    assert rows.split_rows(noted, [4, 1], [0, 7]) == (RequestRows(A, 4, 0, 0, 4),)


def test_padded_length_lists_are_longer_than_the_batch():
    assert rows.split_rows([NotedRequest(A, 2)], [2, 6], [0, 0]) == (RequestRows(A, 2, 0, 0, 2),)


def test_missing_lengths_are_no_guess():
    with pytest.raises(rows.AttributionError):
        rows.split_rows([NotedRequest(A, 2), NotedRequest(B, 2)], [2], [0])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("EXTEND", True), ("MIXED", True), ("DECODE", False), ("TARGET_VERIFY", False), ("DRAFT_EXTEND", False)],
)
def test_only_extend_and_mixed_are_prefill(mode, expected):
    assert rows.is_prefill(SimpleNamespace(forward_mode=SimpleNamespace(name=mode))) is expected


def test_metadata_without_a_mode_is_no_prefill():
    assert not rows.is_prefill(object())
