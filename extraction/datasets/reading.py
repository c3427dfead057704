"""Read a dataset to its end before anything of it is sent: every record checked, its tokens kept on disk."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path

from auxtap.core.errors import AuxtapError, ExtractionError, UsageError
from auxtap.extraction.datasets.conversations import Conversation, Message, is_conversation, read_conversation
from auxtap.extraction.datasets.holdout import HOLDOUT, content_digest
from auxtap.extraction.datasets.pretokenized import read_id, read_ids, read_mask
from auxtap.extraction.datasets.record import Place, Record
from auxtap.extraction.datasets.records import read_records
from auxtap.extraction.datasets.sample import (
    SKIP,
    STOP,
    BadRecord,
    ConversationTokenizer,
    Dataset,
    DatasetRules,
    DatasetSurvey,
    ReadingCounts,
    Sample,
    TokenizedConversation,
    TokenizerFacts,
    bad_place,
)
from auxtap.extraction.datasets.sent import Sent, read_header
from auxtap.extraction.datasets.token_file import TokenFile
from auxtap.tap.protocol import best_digest, new_digest

__all__ = [
    "BadRecord",
    "Conversation",
    "ConversationTokenizer",
    "Dataset",
    "DatasetRules",
    "DatasetSurvey",
    "Message",
    "ReadingCounts",
    "Sample",
    "TokenizedConversation",
    "TokenizerFacts",
    "keep_samples",
    "read_dataset",
    "read_sample",
    "survey_dataset",
]

# Of the bad records so many are kept for a report; all are counted.
_BAD_KEPT = 100
_TOLD_EVERY = 64
_AS_IT_IS = DatasetRules()


def read_dataset(
    path: Path,
    tokenizer: ConversationTokenizer | None = None,
    rules: DatasetRules = _AS_IT_IS,
    observe: Callable[[int], None] = lambda n_records: None,
) -> Dataset:
    """Read and check every record; `tokenizer` is needed for conversations. `observe` is told how many were read.

    Raises:
        ExtractionError: the dataset cannot be read, is empty, or a record is bad (its place and the reason).
        UsageError: it holds conversations and there is no tokenizer, or a package to read it is missing.
    """
    dataset = _Reading(path, tokenizer, rules).read(observe)
    if not dataset.samples:
        why = f": {dataset.first_bad}" if dataset.first_bad else ""
        hint = "every record was left out" if dataset.counts.records else "a dataset is one JSON object a line"
        raise ExtractionError(f"dataset {path} holds no samples{why}", hint=hint)
    return dataset


def survey_dataset(
    path: Path, tokenizer: ConversationTokenizer | None = None, rules: DatasetRules = _AS_IT_IS
) -> DatasetSurvey:
    """Read a dataset to its end whatever is wrong with its records.

    Raises:
        ExtractionError: it cannot be read.
        UsageError: it holds conversations and there is no tokenizer, or a package to read it is missing.
    """
    reading = _Reading(path, tokenizer, replace(rules, on_bad=SKIP))
    dataset = reading.read()
    distinct = {sample.ids_digest() for sample in dataset.samples}
    return DatasetSurvey(dataset, tuple(reading.bad), len(dataset.samples) - len(distinct))


def read_sample(
    path: Path,
    tokenizer: ConversationTokenizer | None = None,
    rules: DatasetRules = _AS_IT_IS,
    *,
    index: int = 0,
    sample_id: str | None = None,
) -> Sample:
    """Read one record: the one called `sample_id`, else number `index`, counted from 0; others are not looked at.

    Raises:
        ExtractionError: there is none, it is bad, or a rule leaves it out.
        UsageError: it is a conversation and there is no tokenizer.
    """
    return _Reading(path, tokenizer, rules).read_one(index, sample_id)


def keep_samples(records: Iterable[tuple[str, bytes, bytes]], split: str = "") -> tuple[Sample, ...]:
    """Return samples of (id, little-endian int64 ids, mask) that come from no file."""
    tokens = TokenFile()
    samples = []
    for index, (sample_id, ids, mask) in enumerate(records):
        begin = tokens.append(ids, mask)
        samples.append(Sample(index, sample_id, Place(Path(), index + 1), len(mask), tokens, begin, split))
    tokens.flush()
    return tuple(samples)


class _BadRecordError(Exception):
    """A record is no sample; the text says why."""


class _Reading:
    """One pass over a dataset."""

    def __init__(self, path: Path, tokenizer: ConversationTokenizer | None, rules: DatasetRules) -> None:
        self.bad: list[BadRecord] = []
        self._path = path
        self._tokenizer = tokenizer
        self._rules = rules
        self._sent: Sent | None = None
        self._tokens = TokenFile()
        self._samples: list[Sample] = []
        self._places: dict[str, Place] = {}
        self._seen: set[bytes] = set()
        self._counts = asdict(ReadingCounts())
        self._algorithm = best_digest()
        self._digest = new_digest(self._algorithm)
        self._talked = False

    def read(self, observe: Callable[[int], None] = lambda n_records: None) -> Dataset:
        try:
            for record in read_records(self._path):
                self._take(record)
                if self._counts["records"] % _TOLD_EVERY == 0:
                    observe(self._counts["records"])
        except AuxtapError as error:
            # What stood first is said first.
            self._stop_at_bad(f"; then {error.message}")
            raise
        self._stop_at_bad()
        self._tokens.flush()
        counts = self._sent.counts if self._sent is not None else self._counts
        known = self._tokenizer.facts if self._tokenizer is not None and self._talked else None
        return Dataset(
            self._path,
            f"{self._algorithm}:{self._digest.hexdigest()}",
            tuple(self._samples),
            ReadingCounts(**counts),
            self.bad[0] if self.bad else None,
            TokenizerFacts(*self._sent.tokenizer) if self._sent and self._sent.tokenizer else known,
            self._rules.holdout,
        )

    def read_one(self, index: int, sample_id: str | None) -> Sample:
        number = -1
        for record in read_records(self._path):
            if number < 0 and read_header(record) is not None:
                continue
            number += 1
            if sample_id is None and number != index:
                continue
            if sample_id is not None and (record.fault or _try_id(record) != sample_id):
                continue
            self._take(record)
            self._stop_at_bad()
            if not self._samples:
                raise ExtractionError(f"{record.place} is left out: it is too long")
            self._tokens.flush()
            return self._samples[0]
        wanted = f"record {sample_id!r}" if sample_id is not None else f"record {index}, counted from 0"
        raise ExtractionError(f"dataset {self._path} has no {wanted}", hint=f"it has {number + 1:,} records")

    def _take(self, record: Record) -> None:
        if not self._counts["records"] and self._sent is None:
            self._sent = read_header(record)
            if self._sent is not None:
                self._rules = replace(self._rules, holdout=self._sent.holdout)
                return
        self._counts["records"] += 1
        try:
            self._keep(record)
        except _BadRecordError as error:
            self._counts["bad"] += 1
            if len(self.bad) < _BAD_KEPT:
                self.bad.append(BadRecord(record.place, str(error)))

    def _stop_at_bad(self, more: str = "") -> None:
        """Raise when there is a bad record and that is not to be; all of them are counted by then."""
        n_bad = self._counts["bad"]
        if n_bad and self._rules.on_bad == STOP:
            others = f" (the first of {n_bad:,} bad records among {self._counts['records']:,})" if n_bad > 1 else ""
            raise bad_place(self.bad[0].place, f"{self.bad[0].reason}{others}{more}") from None

    def _keep(self, record: Record) -> None:
        """Make a sample of a record unless a rule leaves it out.

        Raises:
            _BadRecordError: it is none.
        """
        sample_id, ids, mask = self._read(record)
        rules = self._rules
        is_cut = rules.max_tokens is not None and len(mask) > rules.max_tokens
        if is_cut:
            ids, mask = ids[: 8 * (rules.max_tokens or 0)], mask[: rules.max_tokens]
            if rules.too_long == SKIP or 1 not in mask:
                self._counts["too_long"] += 1
                return
        if rules.dedupe:
            digest = content_digest(ids, mask)
            if digest in self._seen:
                self._counts["duplicates"] += 1
                return
            self._seen.add(digest)
        if sample_id in self._places:
            raise _BadRecordError(f"id {sample_id!r} stands {_at(self._places[sample_id])} already")
        split = rules.holdout.split_of(ids) if rules.holdout is not None else ""
        begin = self._tokens.append(ids, mask)
        self._places[sample_id] = record.place
        self._samples.append(Sample(len(self._samples), sample_id, record.place, len(mask), self._tokens, begin, split))
        self._counts["cut"] += is_cut
        self._counts["held_out"] += split == HOLDOUT
        self._digest.update(json.dumps([sample_id, len(mask)]).encode())
        self._digest.update(ids)
        self._digest.update(mask)

    def _read(self, record: Record) -> tuple[str, bytes, bytes]:
        """Return id, ids and mask of a record.

        Raises:
            UsageError: it is a conversation and there is no tokenizer.
        """
        try:
            if record.fault:
                raise ValueError(record.fault)
            sample_id = read_id(record)
            if not is_conversation(record.value):
                ids = read_ids(record.value.get("input_ids"))
                return sample_id, ids, read_mask(record.value, ids)
            if record.value.get("input_ids") is not None:
                raise ValueError("has both input_ids and turns")
            conversation = read_conversation(record.value)
            if self._tokenizer is None:
                raise UsageError(
                    f"{record.place}: conversations need a tokenizer",
                    hint="give --tokenizer DIR, the folder of the served model's tokenizer",
                )
            self._talked = True
            tokens = self._tokenizer.tokenize(conversation)
            ids = read_ids(tokens.input_ids)
            return sample_id, ids, read_mask({"loss_mask": tokens.loss_mask}, ids)
        except ValueError as error:
            raise _BadRecordError(str(error)) from None


def _try_id(record: Record) -> str | None:
    try:
        return read_id(record)
    except ValueError:
        return None


def _at(place: Place) -> str:
    return f"on {place.unit} {place.number}" + ("" if place.unit == "line" else f" of {place.file.name}")
