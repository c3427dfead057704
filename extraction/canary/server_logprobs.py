"""Ask a server for its own logprobs of prompts."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from auxtap.core.errors import ServerError
from auxtap.extraction.canary.state_checks import TokenLogprobs
from auxtap.extraction.canary.stored_states import PromptStates
from auxtap.extraction.servers.client import ServerClient

LIKELIEST = 5


class NoLogprobsError(Exception):
    """The server does not say its logprobs; says why."""


def ask_logprobs(url: str, prompts: Sequence[PromptStates], timeout_s: float) -> tuple[TokenLogprobs, ...]:
    """Return the likeliest tokens after each row of each prompt, as the server computes them.

    Raises:
        NoLogprobsError: it answers with an error or without logprobs.
    """
    found: list[TokenLogprobs] = []
    with ServerClient(url, connections=1, timeout_s=timeout_s) as client:
        for prompt in prompts:
            try:
                answer = client.ask("/generate", _request(prompt.ids))
                found += _read(prompt, answer["meta_info"])
            except ServerError as error:
                raise NoLogprobsError(f"no logprobs: {error.message}") from None
            except (ValueError, TypeError, KeyError, IndexError) as error:
                raise NoLogprobsError(f"the server's logprobs are unreadable: {error!r}") from None
    return tuple(found)


def _request(ids: Sequence[int]) -> Mapping[str, Any]:
    return {
        "rid": f"logprobs-{secrets.token_hex(8)}",
        "extra_key": secrets.token_hex(8),
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": LIKELIEST,
    }


def _read(prompt: PromptStates, meta: Mapping[str, Any]) -> Iterator[TokenLogprobs]:
    """Yield a row's tokens: what stands at position p of the input was foretold by row p - 1."""
    for position, entries in enumerate(meta["input_top_logprobs"]):
        if entries and position > 0:
            yield TokenLogprobs(prompt.index, position - 1, _tokens(entries))
    outputs = meta["output_top_logprobs"]
    if outputs and outputs[0]:
        yield TokenLogprobs(prompt.index, len(prompt.ids) - 1, _tokens(outputs[0]))


def _tokens(entries: Sequence[Sequence[Any]]) -> dict[int, float]:
    return {int(entry[1]): float(entry[0]) for entry in entries}
