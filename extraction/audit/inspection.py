"""Look a store through: norms of its states, lengths, masks, duplicates, outliers, what was slow."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from auxtap.core.errors import ExtractionError, IntegrityError
from auxtap.extraction.audit.integrity import CheckProgress
from auxtap.extraction.audit.state_norms import NormGatherer, NormSpread, RowReader
from auxtap.extraction.run.dry_run import Bin, histogram
from auxtap.extraction.store.formats.part_formats import part_format
from auxtap.extraction.store.formats.stored_part import LOSS_MASK, MalformedPartError, PartFormat
from auxtap.extraction.store.ledger import FAILED, SKIPPED, STORED, LedgerLine, read_ledger
from auxtap.extraction.store.store import LEDGER, open_manifest
from auxtap.extraction.store.store_manifest import StoreManifest
from auxtap.tap.protocol import DTYPE_BYTES, INPUT_IDS

# A sample is an outlier when the mean norm of a state is so many robust deviations from the other samples'.
OUTLIER_DEVIATIONS = 8.0
# Deviations are not taken for smaller than this (in ln): where all samples are alike, a little is not much.
_LEAST_DEVIATION = 0.02
_LISTED = 10
_TENTHS = 10


@dataclass(frozen=True)
class StateNorms:
    """A state's norms over all tokens but the first of each sample, whose are often quite different.

    `largest_in` and `largest_at` are the sample and the token of the largest.
    """

    state: str
    norms: NormSpread
    first_tokens: NormSpread
    largest_in: str
    largest_at: int


@dataclass(frozen=True)
class Outlier:
    """The mean norm of `state` over the sample's tokens, beside the median of all samples."""

    sample_id: str
    state: str
    mean_norm: float
    usual: float
    deviations: float


@dataclass(frozen=True)
class SlowSample:
    """How long a sample took, from its first request to its ledger line."""

    sample_id: str
    seconds: float
    n_tokens: int
    attempts: int


@dataclass(frozen=True)
class StoreInspection:
    """What was seen. Of the `stored` samples the files of `inspected` were read.

    `trained_tenths` count samples by their share of trained tokens, a tenth each; `untrained` have none at all.
    `repeated` samples have the tokens of an earlier one, `duplicates` are the largest groups of them.
    """

    n_expected: int
    stored: int
    skipped: int
    failed: int
    splits: dict[str, int]
    inspected: int
    n_tokens: int
    lengths: tuple[Bin, ...]
    shortest: int
    median: int
    longest: int
    inspected_tokens: int
    trained_tokens: int
    trained_tenths: tuple[int, ...]
    untrained: int
    states: tuple[StateNorms, ...]
    repeated: int
    duplicates: tuple[tuple[str, ...], ...]
    outliers: tuple[Outlier, ...]
    slowest: tuple[SlowSample, ...]
    more_than_once: int


def inspect_store(
    path: Path, n_samples: int | None = None, observe: Callable[[CheckProgress], None] = lambda progress: None
) -> StoreInspection:
    """Look through a store, the files of all samples or of `n_samples` spread over it; one file at a time.

    Raises:
        ExtractionError: there is no store, or nothing is stored in it.
        IntegrityError: manifest, ledger or a file are unreadable.
        UsageError: its format needs a package that is not installed.
    """
    manifest = open_manifest(path)
    lines = sorted(read_ledger(path / LEDGER).last_lines().values(), key=lambda line: line.index)
    stored = [line for line in lines if line.fate == STORED]
    if not stored:
        raise ExtractionError(f"store {path} holds no samples yet", hint="auxtap status says how far it is")
    looks = _Looks(path, manifest)
    chosen = _spread(stored, n_samples)
    n_bytes = 0
    for number, line in enumerate(chosen, start=1):
        looks.take(line)
        n_bytes += sum(part.n_bytes for part in line.parts)
        observe(CheckProgress(len(chosen), number, n_bytes))
    lengths = sorted(line.n_tokens for line in stored)
    groups = _duplicates(stored)
    return StoreInspection(
        n_expected=manifest.n_expected,
        stored=len(stored),
        skipped=sum(line.fate == SKIPPED for line in lines),
        failed=sum(line.fate == FAILED for line in lines),
        splits=dict(sorted(Counter(line.split for line in stored if line.split).items())),
        inspected=len(chosen),
        n_tokens=sum(lengths),
        lengths=histogram(lengths),
        shortest=lengths[0],
        median=lengths[len(lengths) // 2],
        longest=lengths[-1],
        inspected_tokens=sum(line.n_tokens for line in chosen),
        trained_tokens=looks.trained_tokens,
        trained_tenths=tuple(looks.trained_tenths),
        untrained=looks.untrained,
        states=tuple(looks.states()),
        repeated=sum(len(group) - 1 for group in groups),
        duplicates=tuple(groups[:_LISTED]),
        outliers=looks.outliers(),
        slowest=_slowest(stored),
        more_than_once=sum(line.attempts > 1 for line in stored),
    )


def _spread(lines: Sequence[LedgerLine], n_samples: int | None) -> Sequence[LedgerLine]:
    if n_samples is None or n_samples >= len(lines):
        return lines
    return [lines[place * len(lines) // n_samples] for place in range(n_samples)]


def _duplicates(lines: Sequence[LedgerLine]) -> list[tuple[str, ...]]:
    """Return the ids of samples of the same tokens, the largest groups first."""
    counts = Counter(line.ids_digest for line in lines)
    groups: dict[str, list[str]] = {}
    for line in lines:
        if counts[line.ids_digest] > 1:
            groups.setdefault(line.ids_digest, []).append(line.sample_id)
    return sorted((tuple(group) for group in groups.values()), key=lambda group: (-len(group), group))


def _slowest(lines: Sequence[LedgerLine]) -> tuple[SlowSample, ...]:
    timed = sorted((line for line in lines if line.seconds), key=lambda line: -line.seconds)[:_LISTED]
    return tuple(SlowSample(line.sample_id, line.seconds, line.n_tokens, line.attempts) for line in timed)


@dataclass
class _StateLooks:
    """What is gathered of one state; `means` has the mean norm of each sample, NaN where there is none."""

    rest: NormGatherer = field(default_factory=NormGatherer)
    first: NormGatherer = field(default_factory=NormGatherer)
    largest: float = -math.inf
    largest_in: str = ""
    largest_at: int = 0
    means: list[float] = field(default_factory=list)


class _Looks:
    """One pass over the samples of a store."""

    def __init__(self, path: Path, manifest: StoreManifest) -> None:
        self.trained_tokens = 0
        self.untrained = 0
        self.trained_tenths = [0] * _TENTHS
        self._path = path
        self._width = manifest.model.hidden_size
        self._format: PartFormat = part_format(manifest.part_format)
        self._states = {state: _StateLooks() for stage in manifest.stages for state in stage.states}
        self._ids: list[str] = []

    def take(self, line: LedgerLine) -> None:
        """Read a sample's files.

        Raises:
            IntegrityError: one cannot be read.
        """
        self._ids.append(line.sample_id)
        mask = b""
        for part in line.parts:
            try:
                mask = self._read(self._path / part.file, line.sample_id)
            except (OSError, MalformedPartError, KeyError, ValueError) as error:
                raise IntegrityError(
                    f"{self._path / part.file} cannot be read: {error}", hint="auxtap check tells what else is wrong"
                ) from None
        # The parts of all stages bear the same mask.
        n_trained = mask.count(1)
        self.trained_tokens += n_trained
        self.untrained += not n_trained
        self.trained_tenths[min(_TENTHS - 1, _TENTHS * n_trained // max(1, len(mask)))] += 1

    def _read(self, path: Path, sample_id: str) -> bytes:
        mask = bytearray()
        readers: dict[str, RowReader] = {}
        rows: Counter[str] = Counter()
        sums: defaultdict[str, float] = defaultdict(float)
        for slot, block in self._format.open(path).blocks():
            if slot.name == LOSS_MASK:
                mask += block
            elif slot.name != INPUT_IDS:
                if slot.name not in readers:
                    row_bytes = self._width * DTYPE_BYTES[slot.dtype]
                    readers[slot.name] = RowReader(slot.dtype, self._width, row_bytes)
                norms = readers[slot.name].norms(block)
                sums[slot.name] += self._note(slot.name, norms, rows[slot.name], sample_id)
                rows[slot.name] += len(norms)
        for state, n_rows in rows.items():
            self._states[state].means.append(sums[state] / (n_rows - 1) if n_rows > 1 else math.nan)
        return bytes(mask)

    def _note(self, state: str, norms: NDArray[np.float64], begin: int, sample_id: str) -> float:
        """Take the norms of a state's rows from `begin` on; return their sum without the sample's first."""
        looks = self._states[state]
        rest = norms[1:] if begin == 0 else norms
        if begin == 0:
            looks.first.add(norms[:1])
        looks.rest.add(rest)
        if len(rest) and float(rest.max()) > looks.largest:
            looks.largest = float(rest.max())
            looks.largest_in, looks.largest_at = sample_id, begin + len(norms) - len(rest) + int(rest.argmax())
        return float(rest.sum())

    def states(self) -> Iterator[StateNorms]:
        """Give the norms of each state in the order of the layers."""
        for state, looks in self._states.items():
            yield StateNorms(state, looks.rest.spread(), looks.first.spread(), looks.largest_in, looks.largest_at)

    def outliers(self) -> tuple[Outlier, ...]:
        """Return the samples whose mean norms are far from the others', the farthest first."""
        found = []
        for state, looks in self._states.items():
            means = np.array(looks.means)
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = np.log(means)
            known = logs[np.isfinite(logs)]
            if not len(known):
                continue
            usual = float(np.median(known))
            # 1.4826 makes the median deviation of normal values their standard deviation.
            scale = max(_LEAST_DEVIATION, 1.4826 * float(np.median(np.abs(known - usual))))
            for sample_id, mean, log in zip(self._ids, looks.means, logs, strict=True):
                # A sample of one token has no norms but that of its first.
                deviations = abs(float(log) - usual) / scale
                if not math.isnan(mean) and not deviations <= OUTLIER_DEVIATIONS:
                    found.append(Outlier(sample_id, state, mean, math.exp(usual), deviations))
        return tuple(sorted(found, key=lambda each: (-each.deviations, each.sample_id))[:_LISTED])
