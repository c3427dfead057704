"""From characters to tokens: which tokens are the assistant's, exact to the token or refused."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from auxtap.extraction.datasets.sample import TokenizedConversation

# By how many tokens a stretch of text may differ in length from the same stretch with something behind it.
_LOOK_ASIDE = 16
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Span:
    """Characters `begin` to `end` of a rendered conversation, said in turn `turn` (counted from 1)."""

    begin: int
    end: int
    turn: int


@dataclass(frozen=True)
class Codec:
    """A tokenizer's two ways, without tokens added at the ends; `specials` are its special tokens with their ids.

    `divider` is one of them that leaves the text behind it alone: what stands there is not the beginning of a text.
    """

    encode: Encode
    decode: Callable[[Sequence[int]], str]
    specials: Sequence[tuple[str, int]]
    divider: tuple[str, int] | None = None

    def encode_inner(self, text: str) -> list[int]:
        """Return the tokens of a text that others stand before; some tokenizers mark the beginning of a text."""
        if self.divider is not None:
            ids = self.encode(self.divider[0] + text)
            if ids[:1] == [self.divider[1]]:
                return ids[1:]
        return self.encode(text)

    def pattern(self) -> re.Pattern[str]:
        """Return what finds special tokens in a text, the longest first; nothing when there are none."""
        names = sorted((re.escape(name) for name, _ in self.specials), key=len, reverse=True)
        return re.compile("|".join(names) or r"(?!)")


def mask_spans(text: str, spans: Sequence[Span], codec: Codec) -> TokenizedConversation:
    """Tokenize `text` with a mask that is 1 on the tokens within the ascending `spans`.

    A token that runs across a bound is taken apart there: that is how the model met it, which is given the prompt as
    tokens of its own and goes on behind them.

    Raises:
        ValueError: the tokenizer gives other text when its input is taken apart; names the turn.
    """
    tokens = _Bounds(text, codec)
    runs: list[tuple[int, int]] = []
    for span in spans:
        begin = tokens.find(span.begin)
        runs.append((begin, tokens.find(span.end) if span.end > span.begin else begin))
    if tokens.was_cut and codec.decode(tokens.ids) != codec.decode(codec.encode(text)):
        raise ValueError(
            f"a token runs across the beginning or the end of what is said in turn {tokens.first_cut(spans)}, "
            "and the tokenizer cannot take the text apart there, so there is no exact mask"
        )
    mask = [0] * len(tokens.ids)
    for first, last in runs:
        mask[first:last] = [1] * (last - first)
    return TokenizedConversation(tokens.ids, mask)


class _Bounds:
    """Finds, in ascending order, the token that begins at a character."""

    def __init__(self, text: str, codec: Codec) -> None:
        self._text = text
        self._codec = codec
        self._pattern = codec.pattern()
        # All before `_base` is settled: it was taken apart there.
        self._base = 0
        self._settled: list[int] = []
        self._cuts: list[int] = []
        self._encode_rest()

    @property
    def ids(self) -> list[int]:
        """The tokens of the whole text."""
        return self._settled + self._rest

    @property
    def was_cut(self) -> bool:
        """Whether a token had to be taken apart."""
        return bool(self._cuts)

    def first_cut(self, spans: Iterable[Span]) -> int:
        """Return the turn of the first span that a token ran across a bound of."""
        return next(span.turn for span in spans if {span.begin, span.end} & set(self._cuts))

    def find(self, place: int) -> int:
        """Return the position of the token that begins at character `place`; take one that runs across apart.

        When the tokens of the text before it, by itself, are those at the head of the whole, none runs across. Only
        the text from the last special token on is looked at, where special tokens are what they seem.
        """
        for start, first in dict.fromkeys((self._anchor(place), (self._base, 0))):
            head = self._encode(start, place)
            found = self._end_of(head, first)
            if found is not None:
                return len(self._settled) + found
        self._settled += head
        self._base = place
        self._cuts.append(place)
        self._encode_rest()
        return len(self._settled)

    def _end_of(self, head: list[int], first: int) -> int | None:
        """Return where the tokens from `first` on have given what `head` gives, None when one goes on beyond that.

        They may be others: a pattern that looks ahead divides blanks otherwise when something stands behind them.
        """
        end = first + len(head)
        if self._rest[first:end] == head:
            return end
        text = self._codec.decode(head)
        for other in range(max(first, end - _LOOK_ASIDE), min(len(self._rest), end + _LOOK_ASIDE) + 1):
            if self._codec.decode(self._rest[first:other]) == text:
                return other
        return None

    def _encode_rest(self) -> None:
        rest = self._text[self._base :]
        self._rest = self._encode(self._base, len(self._text))
        ids = dict(self._codec.specials)
        in_text = [(match.start() + self._base, ids[match[0]]) for match in self._pattern.finditer(rest)]
        special = set(ids.values())
        in_tokens = [(place, token) for place, token in enumerate(self._rest) if token in special]
        same = [token for _, token in in_text] == [token for _, token in in_tokens]
        self._anchors = [(self._base, 0)]
        if same:
            pairs = zip(in_text, in_tokens, strict=True)
            self._anchors += [(place, position) for (place, _), (position, _) in pairs if place > self._base]

    def _encode(self, begin: int, end: int) -> list[int]:
        return (self._codec.encode_inner if begin else self._codec.encode)(self._text[begin:end])

    def _anchor(self, place: int) -> tuple[int, int]:
        """Return character and position of the last special token that begins before `place`."""
        return self._anchors[bisect_right(self._anchors, (place - 1, len(self._rest))) - 1]
