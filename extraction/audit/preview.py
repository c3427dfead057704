"""One sample as a trainer will see it: each token's state beside the token that it is to predict."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from auxtap.core.errors import ExtractionError
from auxtap.extraction.datasets.reading import DatasetRules, Sample, TokenizerFacts, keep_samples, read_sample
from auxtap.extraction.datasets.tokenizer import ChatTokenizer
from auxtap.extraction.store.reader import StoreReader
from auxtap.extraction.store.store import MANIFEST


class TokenTexts(Protocol):
    """What tells the text of tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens together."""

    def token_text(self, token: int) -> str:
        """Return what one token says by itself."""


@dataclass(frozen=True)
class PreviewToken:
    """A token at its place; `text` is empty where no tokenizer tells it."""

    position: int
    token_id: int
    text: str
    trained: bool


@dataclass(frozen=True)
class PreviewRow:
    """The state of `token`, the token that the served model predicts from it, and the one that a drafter does.

    An EAGLE-3 head is given the state of `token` and the embedding of `predicts`, and is to say `drafts`.
    """

    token: PreviewToken
    predicts: PreviewToken | None
    drafts: PreviewToken | None


@dataclass(frozen=True)
class TrainedRun:
    """Tokens `first` to `last`, both included, that are trained on without a gap."""

    first: int
    last: int
    text: str


@dataclass(frozen=True)
class Preview:
    """A sample; `warning` says why it may not be what it seems."""

    sample_id: str
    place: str
    n_tokens: int
    n_trained: int
    split: str
    runs: tuple[TrainedRun, ...]
    rows: tuple[PreviewRow, ...]
    warning: str = ""


def preview_sample(
    path: Path,
    tokenizer: ChatTokenizer | None,
    rules: DatasetRules,
    *,
    index: int = 0,
    sample_id: str | None = None,
) -> Preview:
    """Return a sample of a dataset or of a store: the one called `sample_id`, else number `index`, counted from 0.

    Raises:
        ExtractionError: there is no such sample, it is bad, or the dataset cannot be read.
        IntegrityError: the store's manifest or ledger are unreadable.
        UsageError: it is a conversation and there is no tokenizer with a chat template.
    """
    if not (path / MANIFEST).is_file():
        sample = read_sample(path, tokenizer, rules, index=index, sample_id=sample_id)
        return make_preview(sample, str(sample.place), tokenizer)
    reader = StoreReader(path)
    sample, place = _stored_sample(reader, index, sample_id)
    return make_preview(sample, place, tokenizer, _difference(reader, tokenizer.facts if tokenizer else None))


def _stored_sample(reader: StoreReader, index: int, sample_id: str | None) -> tuple[Sample, str]:
    from safetensors import safe_open

    found = next((s for s in reader if s.sample_id == sample_id or (sample_id is None and s.index == index)), None)
    if found is None:
        wanted = repr(sample_id) if sample_id is not None else f"number {index}"
        raise ExtractionError(f"store {reader.path} holds no sample {wanted}", hint="auxtap inspect says what it holds")
    file = found.files[0]
    tensors: Any
    if file.suffix == ".pt":
        tensors = {name: tensor.numpy() for name, tensor in found.load("torch").items() if name in _OF_TOKENS}
    else:
        with safe_open(file, framework="numpy") as opened:
            tensors = {name: opened.get_tensor(name) for name in _OF_TOKENS}
    ids, mask = (tensors[name].tobytes() for name in _OF_TOKENS)
    (sample,) = keep_samples([(found.sample_id, ids, mask)], split=found.split)
    return sample, str(file)


_OF_TOKENS = ("input_ids", "loss_mask")


def _difference(reader: StoreReader, facts: TokenizerFacts | None) -> str:
    known = reader.manifest.dataset.tokenizer
    if facts is None or not known or facts.digest == known:
        return ""
    return f"the store was made with another tokenizer ({known}, this one is {facts.digest}): texts may be wrong"


def make_preview(sample: Sample, place: str, texts: TokenTexts | None, warning: str = "") -> Preview:
    """Return the preview of a sample."""
    ids, mask = sample.token_ids(), sample.loss_mask
    tokens = [
        PreviewToken(position, token, texts.token_text(token) if texts is not None else "", bool(entry))
        for position, (token, entry) in enumerate(zip(ids, mask, strict=True))
    ]
    ahead: list[PreviewToken | None] = [*tokens, None, None]
    rows = tuple(PreviewRow(token, ahead[i + 1], ahead[i + 2]) for i, token in enumerate(tokens))
    runs = tuple(
        TrainedRun(first, last, texts.decode(ids[first : last + 1]) if texts is not None else "")
        for first, last in find_runs(mask)
    )
    return Preview(sample.sample_id, place, len(ids), mask.count(1), sample.split, runs, rows, warning)


def find_runs(mask: bytes) -> Iterator[tuple[int, int]]:
    """Give the first and the last position of each stretch of ones."""
    begin = mask.find(1)
    while begin >= 0:
        end = mask.find(0, begin)
        end = len(mask) if end < 0 else end
        yield begin, end - 1
        begin = mask.find(1, end)


def rows_around_changes(preview: Preview, n_rows: int) -> tuple[PreviewRow, ...]:
    """Return the rows within `n_rows` of the ends of the sample and of each change between trained and not."""
    marks = [0, preview.n_tokens - 1]
    for run in preview.runs:
        marks += [run.first, run.last]
    shown = {place for mark in marks for place in range(mark - n_rows, mark + n_rows + 1)}
    return tuple(row for row in preview.rows if row.token.position in shown)
