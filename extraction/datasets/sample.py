"""A dataset that was read: its samples, what became of the records, and by which rules."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.extraction.datasets.conversations import Conversation
from auxtap.extraction.datasets.holdout import Holdout
from auxtap.extraction.datasets.pretokenized import widest_id
from auxtap.extraction.datasets.record import Place
from auxtap.extraction.datasets.token_file import TokenFile
from auxtap.tap.protocol import best_digest, new_digest

STOP, SKIP, CUT = "stop", "skip", "cut"


@dataclass(frozen=True)
class TokenizedConversation:
    """Token ids and a mask of the same length that is 1 on the assistant's tokens."""

    input_ids: Sequence[int]
    loss_mask: Sequence[int]


@dataclass(frozen=True)
class TokenizerFacts:
    """Which tokenizer it was: `digest` of its files, and how many ids it has."""

    digest: str
    n_ids: int


class ConversationTokenizer(Protocol):
    """What turns conversations into tokens."""

    @property
    def facts(self) -> TokenizerFacts | None:
        """Which one this is, None where nobody knows."""

    def tokenize(self, conversation: Conversation) -> TokenizedConversation:
        """Apply the chat template.

        Raises:
            ValueError: the conversation has no exact mask; says which turn.
        """


@dataclass(frozen=True, slots=True)
class Sample:
    """One record; its tokens are read from `tokens` when they are asked for. `split` is empty without a holdout."""

    index: int
    sample_id: str
    place: Place
    n_tokens: int
    tokens: TokenFile
    begin: int
    split: str

    @property
    def ids(self) -> bytes:
        """The token ids as little-endian int64."""
        return self.tokens.ids(self.begin, self.n_tokens)

    @property
    def loss_mask(self) -> bytes:
        """One byte (0 or 1) a token."""
        return self.tokens.loss_mask(self.begin, self.n_tokens)

    def token_ids(self) -> list[int]:
        """Return the ids as integers."""
        return self.tokens.token_ids(self.begin, self.n_tokens)

    def ids_digest(self) -> str:
        """Return the digest that the ledger keeps of the ids."""
        algorithm = best_digest()
        digest = new_digest(algorithm)
        digest.update(self.ids)
        return f"{algorithm}:{digest.hexdigest()}"


@dataclass(frozen=True)
class ReadingCounts:
    """What became of a dataset's records.

    `bad` were none, `duplicates` had tokens and mask of an earlier one, `too_long` were left out, or had nothing to
    train on within the bound; `cut` are among the samples, and so are the `held_out`.
    """

    records: int = 0
    bad: int = 0
    duplicates: int = 0
    too_long: int = 0
    cut: int = 0
    held_out: int = 0


@dataclass(frozen=True)
class BadRecord:
    """A record of a dataset that is no sample."""

    place: Place
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass(frozen=True)
class Dataset:
    """A whole dataset in file order; `digest` covers ids, tokens and masks, not how the file spells them.

    `first_bad` is the first record that was left out as bad.
    """

    path: Path
    digest: str
    samples: tuple[Sample, ...]
    counts: ReadingCounts = field(default_factory=ReadingCounts)
    first_bad: BadRecord | None = None
    tokenizer: TokenizerFacts | None = None
    holdout: Holdout | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens of all samples together."""
        return sum(sample.n_tokens for sample in self.samples)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse ids that the model has no embedding for.

        Raises:
            ExtractionError: a sample has one; names its place.
        """
        for sample in self.samples:
            largest = widest_id(sample.ids)
            if largest >= vocab_size:
                has = f"; the dataset's tokenizer has {self.tokenizer.n_ids:,} ids" if self.tokenizer else ""
                raise bad_place(
                    sample.place,
                    f"token id {largest} is outside the model's vocabulary of {vocab_size}{has}",
                    hint="tokenize the dataset with the tokenizer of the model that is served",
                )


@dataclass(frozen=True)
class DatasetSurvey:
    """A dataset with what is wrong in it.

    `dataset` holds the good records only; `n_repeated` of them have the very tokens of an earlier one.
    """

    dataset: Dataset
    bad: tuple[BadRecord, ...]
    n_repeated: int


@dataclass(frozen=True)
class DatasetRules:
    """How records become samples.

    A bad record stops the reading (`on_bad` stop) or is left out (skip). One of more than `max_tokens` is cut
    there, or left out when `too_long` is skip. `dedupe` leaves out what has tokens and mask of an earlier one.
    """

    on_bad: str = STOP
    max_tokens: int | None = None
    too_long: str = CUT
    dedupe: bool = False
    holdout: Holdout | None = None

    def __post_init__(self) -> None:
        """Refuse what is no rule.

        Raises:
            UsageError: says which.
        """
        for name, value, known in (
            ("on-bad", self.on_bad, (STOP, SKIP)), ("too-long", self.too_long, (CUT, SKIP)),
        ):  # fmt: skip
            if value not in known:
                raise UsageError(f"--{name} is {value!r}", hint=f"one of {', '.join(known)}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"at most {self.max_tokens} tokens a sample leave nothing", hint="give a number above 0")


def bad_place(place: Place, reason: str, *, hint: str | None = None) -> ExtractionError:
    """Return the error of a record that is no sample."""
    return ExtractionError(
        f"{place}: {reason}", hint=hint or "nothing was sent; mend or drop the record, or give --on-bad skip"
    )
