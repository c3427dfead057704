"""Read a dataset: JSONL, checked to the last line before anything of it is sent."""

import json
import sys
import unicodedata
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.tap.protocol import best_digest, new_digest

MAX_ID_CHARS = 200
MAX_SAMPLES = 10**9
_MAX_TOKEN_ID = 2**31 - 1
# Cc: control characters and newlines; Cs: lone surrogates, no text at all; Zl, Zp: Unicode's own line ends.
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True)
class TokenizedConversation:
    """Token ids and a mask of the same length that is 1 on the assistant's tokens."""

    input_ids: Sequence[int]
    loss_mask: Sequence[int]


class ConversationTokenizer(Protocol):
    """What turns `messages` into tokens."""

    def tokenize(self, messages: Sequence[Message]) -> TokenizedConversation:
        """Apply the chat template.

        Raises:
            ValueError: the conversation has no exact mask; says which turn.
        """


@dataclass(frozen=True)
class Sample:
    """One record: `ids` are its token ids as little-endian int64, `loss_mask` one byte (0 or 1) a token."""

    index: int
    sample_id: str
    line: int
    ids: bytes
    loss_mask: bytes

    @property
    def n_tokens(self) -> int:
        """How many tokens the prompt has."""
        return len(self.loss_mask)

    def token_ids(self) -> list[int]:
        """Return the ids as integers."""
        ids = array("q")
        ids.frombytes(self.ids)
        if sys.byteorder == "big":
            ids.byteswap()
        return ids.tolist()

    def ids_digest(self) -> str:
        """Return the digest that the ledger keeps of the ids."""
        algorithm = best_digest()
        digest = new_digest(algorithm)
        digest.update(self.ids)
        return f"{algorithm}:{digest.hexdigest()}"


@dataclass(frozen=True)
class Dataset:
    """A whole dataset in file order; `digest` covers ids, tokens and masks, not how the file spells them."""

    path: Path
    digest: str
    samples: tuple[Sample, ...]

    @property
    def n_tokens(self) -> int:
        """Tokens of all samples together."""
        return sum(sample.n_tokens for sample in self.samples)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse ids that the model has no embedding for.

        Raises:
            ExtractionError: a sample has one; names the line.
        """
        for sample in self.samples:
            largest = max(sample.token_ids())
            if largest >= vocab_size:
                raise _bad_line(
                    self.path,
                    sample.line,
                    f"token id {largest} is outside the model's vocabulary of {vocab_size}",
                    hint="tokenize the dataset with the tokenizer of the model that is served",
                )


@dataclass(frozen=True)
class BadRecord:
    """A line of a dataset that is no sample."""

    line: int
    reason: str


@dataclass(frozen=True)
class DatasetSurvey:
    """A dataset with all that is wrong in it.

    `dataset` holds the good records only; `n_repeated` of them have the very tokens of an earlier one.
    """

    dataset: Dataset
    bad: tuple[BadRecord, ...]
    n_repeated: int


def read_dataset(path: Path, tokenizer: ConversationTokenizer | None = None) -> Dataset:
    """Read and check every line of a JSONL file; `tokenizer` is needed for records of `messages`.

    Raises:
        ExtractionError: the file cannot be read, is empty, or a line is bad (`path:line` and the reason).
        UsageError: it holds `messages` and there is no tokenizer.
    """
    dataset = _gather(path, tokenizer, None)
    if not dataset.samples:
        raise ExtractionError(f"dataset {path} holds no samples", hint="a dataset is one JSON object a line")
    return dataset


def survey_dataset(path: Path, tokenizer: ConversationTokenizer | None = None) -> DatasetSurvey:
    """Read a dataset to its end whatever is wrong in it.

    Raises:
        ExtractionError: the file cannot be read.
        UsageError: it holds `messages` and there is no tokenizer.
    """
    bad: list[BadRecord] = []
    dataset = _gather(path, tokenizer, bad)
    distinct = {sample.ids_digest() for sample in dataset.samples}
    return DatasetSurvey(dataset, tuple(bad), len(dataset.samples) - len(distinct))


def _gather(path: Path, tokenizer: ConversationTokenizer | None, bad: list[BadRecord] | None) -> Dataset:
    """Read all samples; the first bad line raises, or every one goes into `bad`."""
    lines: dict[str, int] = {}
    samples: list[Sample] = []
    algorithm = best_digest()
    digest = new_digest(algorithm)
    try:
        with path.open("rb") as file:
            for number, data in enumerate(file, start=1):
                if not data.strip():
                    continue
                try:
                    sample = _read_line(path, number, data, len(samples), tokenizer)
                    if sample.sample_id in lines:
                        raise _BadLineError(f"id {sample.sample_id!r} stands on line {lines[sample.sample_id]} already")
                except _BadLineError as error:
                    if bad is None:
                        raise _bad_line(path, number, str(error)) from None
                    bad.append(BadRecord(number, str(error)))
                    continue
                lines[sample.sample_id] = number
                samples.append(sample)
                digest.update(json.dumps([sample.sample_id, sample.n_tokens]).encode())
                digest.update(sample.ids)
                digest.update(sample.loss_mask)
    except OSError as error:
        raise ExtractionError(f"cannot read dataset {path}: {error.strerror}") from None
    return Dataset(path, f"{algorithm}:{digest.hexdigest()}", tuple(samples))


class _BadLineError(Exception):
    """A line is no sample; the text says why."""


def _bad_line(path: Path, number: int, reason: str, *, hint: str | None = None) -> ExtractionError:
    return ExtractionError(f"{path}:{number}: {reason}", hint=hint or "nothing was sent; mend or drop the line")


def _read_line(path: Path, number: int, data: bytes, index: int, tokenizer: ConversationTokenizer | None) -> Sample:
    try:
        record = json.loads(data)
        if not isinstance(record, dict):
            raise ValueError("not a JSON object")
        sample_id = _read_id(record)
        if "messages" in record:
            if "input_ids" in record:
                raise ValueError("has both input_ids and messages")
            messages = _read_messages(record["messages"])
            if tokenizer is None:
                raise UsageError(
                    f"{path}:{number}: messages need a tokenizer",
                    hint="give --tokenizer DIR, the folder of the served model's tokenizer",
                )
            tokens = tokenizer.tokenize(messages)
            ids, mask = _pack_ids(tokens.input_ids), _pack_mask(tokens.loss_mask, len(tokens.input_ids))
        else:
            ids = _pack_ids(record.get("input_ids"))
            mask = _pack_mask(record.get("loss_mask"), len(ids) // 8)
    except json.JSONDecodeError as error:
        raise _BadLineError(f"malformed JSON: {error.msg} at column {error.colno}") from None
    except UnicodeDecodeError:
        raise _BadLineError("malformed JSON: not UTF-8") from None
    except RecursionError:
        raise _BadLineError("malformed JSON: nested too deep") from None
    except ValueError as error:
        raise _BadLineError(str(error)) from None
    return Sample(index, sample_id, number, ids, mask)


def _read_id(record: Mapping[str, object]) -> str:
    value = record.get("id")
    if not isinstance(value, str):
        raise ValueError("id is missing" if value is None else "id is not a string")
    if not value.strip():
        raise ValueError("id is empty")
    if len(value) > MAX_ID_CHARS:
        raise ValueError(f"id has {len(value)} characters, more than {MAX_ID_CHARS}")
    if any(unicodedata.category(character) in _REFUSED_CATEGORIES for character in value):
        raise ValueError(f"id {value!r} holds control characters")
    if value.startswith("/") or "\\" in value or ".." in value.split("/"):
        raise ValueError(f"id {value!r} looks like a path")
    return value


def _read_messages(value: object) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("messages is not a list of turns")
    turns = []
    for number, turn in enumerate(value, start=1):
        role = turn.get("role") if isinstance(turn, dict) else None
        content = turn.get("content") if isinstance(turn, dict) else None
        if not isinstance(role, str) or not isinstance(content, str):
            raise ValueError(f"turn {number} of messages has no role and content of text")
        turns.append(Message(role, content))
    return tuple(turns)


def _pack_ids(value: object) -> bytes:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ValueError("has no list of input_ids")
    if not value:
        raise ValueError("input_ids is empty")
    for position, token in enumerate(value):
        if type(token) is not int:
            raise ValueError(f"input_ids[{position}] is not an integer")
        if not 0 <= token <= _MAX_TOKEN_ID:
            raise ValueError(f"input_ids[{position}] is {token}, no token id")
    ids = array("q", value)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def _pack_mask(value: object, n_tokens: int) -> bytes:
    if value is None:
        return b"\x01" * n_tokens
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ValueError("loss_mask is not a list")
    if len(value) != n_tokens:
        raise ValueError(f"loss_mask has {len(value)} entries for {n_tokens} tokens")
    for position, entry in enumerate(value):
        if type(entry) not in (int, bool) or entry not in (0, 1):
            raise ValueError(f"loss_mask[{position}] is neither 0 nor 1")
    return bytes(map(int, value))
