"""A dataset as it is sent elsewhere: token ids and masks, headed by what was known where it was read."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from auxtap.extraction.datasets.holdout import Holdout
from auxtap.extraction.datasets.record import Record

if TYPE_CHECKING:
    from auxtap.extraction.datasets.reading import Dataset

_HEADER = "auxtap_dataset"
_VERSION = 1


@dataclass(frozen=True)
class Sent:
    """What heads a dataset that was read elsewhere; `tokenizer` are the digest and the number of ids."""

    counts: Mapping[str, int] = field(hash=False)
    tokenizer: tuple[str, int] | None
    holdout: Holdout | None


def sent_lines(dataset: "Dataset") -> Iterator[bytes]:
    """Give a dataset line by line, as `read_dataset` reads it, whatever it was made from."""
    header = {
        _HEADER: _VERSION,
        "counts": asdict(dataset.counts),
        "tokenizer": asdict(dataset.tokenizer) if dataset.tokenizer is not None else None,
        "holdout": dataset.holdout.per_million if dataset.holdout is not None else None,
    }
    yield _line(header)
    for sample in dataset.samples:
        record: dict[str, Any] = {"id": sample.sample_id, "input_ids": sample.token_ids()}
        mask = sample.loss_mask
        if 0 in mask:
            record["loss_mask"] = list(mask)
        yield _line(record)


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def read_header(record: Record) -> Sent | None:
    """Return what the first record of a dataset says of it, None when it is a record like any other."""
    if record.value.get(_HEADER) != _VERSION:
        return None
    value = record.value
    tokenizer, holdout = value.get("tokenizer"), value.get("holdout")
    known = {"records", "bad", "duplicates", "too_long", "cut", "held_out"}
    counts = {key: int(count) for key, count in dict(value.get("counts", {})).items() if key in known}
    return Sent(
        counts,
        (str(tokenizer["digest"]), int(tokenizer["n_ids"])) if tokenizer is not None else None,
        Holdout(int(holdout)) if holdout is not None else None,
    )
