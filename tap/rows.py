"""Which rows of a forward belong to which request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import protocol

PREFILL_MODES = ("EXTEND", "MIXED")


class AttributionError(Exception):
    """The rows of a batch cannot be told apart safely."""


@dataclass(frozen=True)
class NotedRequest:
    """One request of a batch as it stood when the batch was made; `rid` is None for requests that are not ours."""

    rid: protocol.RequestId | None
    n_tokens: int


@dataclass(frozen=True)
class RequestRows:
    """`n_rows` rows from `batch_row` on are rows `first_row`... of the prompt of `rid`, which has `n_tokens`."""

    rid: protocol.RequestId
    n_tokens: int
    first_row: int
    batch_row: int
    n_rows: int


def note_requests(requests: Sequence[Any]) -> tuple[NotedRequest, ...]:
    """Snapshot rid and prompt length of SGLang's `Req` objects; empty when none of them is ours."""
    noted = tuple(NotedRequest(protocol.parse_rid(request.rid), len(request.origin_input_ids)) for request in requests)
    return noted if any(request.rid for request in noted) else ()


def noted_requests(batch: Any) -> tuple[NotedRequest, ...]:
    """Return the requests of the batch that a forward batch is made of: attached to it, or listed by it."""
    attached: tuple[NotedRequest, ...] | None = getattr(batch, "_auxtap", None)
    return note_requests(batch.reqs) if attached is None else attached


def canary_requests(noted: tuple[NotedRequest, ...]) -> tuple[NotedRequest, ...]:
    """Return the requests of a batch that holds a canary's alone, none otherwise."""
    return noted if all(each.rid is not None and protocol.is_canary(each.rid) for each in noted) else ()


def same_requests(noted: Sequence[NotedRequest], rids: Sequence[Any]) -> bool:
    """Tell whether rids are those of the noted requests, each in its place."""
    return len(noted) == len(rids) and all(
        request.rid == protocol.parse_rid(rid)
        for request, rid in zip(noted, rids)  # noqa: B905
    )


def holds_ours(rids: Sequence[Any]) -> bool:
    """Tell whether one of the rids is the extractor's."""
    return any(protocol.parse_rid(rid) is not None for rid in rids)


def is_prefill(forward_batch: Any) -> bool:
    """Tell whether the batch holds prompt rows: EXTEND or MIXED, and nothing else that `is_extend` covers."""
    return getattr(getattr(forward_batch, "forward_mode", None), "name", "") in PREFILL_MODES


def split_rows(
    noted: Sequence[NotedRequest], extend_lengths: Sequence[int], prefix_lengths: Sequence[int]
) -> tuple[RequestRows, ...]:
    """Return the prompt rows of our requests, clipped at the prompt's end.

    Raises:
        AttributionError: the batch holds fewer lengths than requests.
    """
    if min(len(extend_lengths), len(prefix_lengths)) < len(noted):
        raise AttributionError(
            f"{len(noted)} requests, but {len(extend_lengths)} extend and {len(prefix_lengths)} prefix lengths"
        )
    rows: list[RequestRows] = []
    batch_row = 0
    for request, extend_length, prefix_length in zip(noted, extend_lengths, prefix_lengths):  # noqa: B905
        first_row, length = int(prefix_length), int(extend_length)
        n_rows = min(length, request.n_tokens - first_row)
        if request.rid is not None and n_rows > 0:
            rows.append(RequestRows(request.rid, request.n_tokens, first_row, batch_row, n_rows))
        batch_row += length
    return tuple(rows)
