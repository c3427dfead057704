"""Say what became of a dataset's records."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from auxtap.commands.views import console
from auxtap.extraction.datasets.holdout import Holdout
from auxtap.extraction.datasets.reading import BadRecord, ReadingCounts

# A dataset that takes longer to read is spoken of while it is read.
_TELL_EVERY_S = 5.0


def reading_progress(path: Path, clock: Callable[[], float] = time.monotonic) -> Callable[[int], None]:
    """Return what says now and then how many records were read."""
    told_at = clock()

    def observe(n_records: int) -> None:
        nonlocal told_at
        if clock() - told_at >= _TELL_EVERY_S:
            told_at = clock()
            console.say(f"reading {path}: {n_records:,} records")

    return observe


def describe_counts(counts: ReadingCounts, first_bad: BadRecord | None, holdout: Holdout | None) -> Iterator[str]:
    """Give a line for each thing that a rule or a fault did; none when every record is a sample as it stands."""
    if counts.bad:
        yield f"{counts.bad:,} of {counts.records:,} records are bad and left out, the first: {first_bad}"
    if counts.duplicates:
        yield f"{counts.duplicates:,} records have tokens and mask of an earlier one and are left out"
    if counts.too_long:
        yield f"{counts.too_long:,} records are too long and left out"
    if counts.cut:
        yield f"{counts.cut:,} samples are cut"
    if holdout is not None:
        yield f"{counts.held_out:,} samples are held out ({holdout} asked for)"
