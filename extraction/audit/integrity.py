"""Verify a finished store from its bytes: nothing is taken from the ledger that the files do not bear out."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from auxtap.core.errors import ExtractionError, IntegrityError
from auxtap.core.files import held_lock
from auxtap.extraction.audit.part_check import PartClaim, check_part_file
from auxtap.extraction.datasets.holdout import parse_holdout
from auxtap.extraction.store.formats.part_formats import part_format
from auxtap.extraction.store.formats.stored_part import MalformedPartError, PartFormat
from auxtap.extraction.store.ledger import FAILED, SKIPPED, STORED, LedgerLine, LedgerPart, scan_ledger
from auxtap.extraction.store.remote_samples import RemoteSamples
from auxtap.extraction.store.store import LEDGER, LOCK, MANIFEST, QUARANTINE, SAMPLES, STATUS, open_manifest, part_file
from auxtap.extraction.store.store_manifest import StageStates, StoreManifest, read_manifest
from auxtap.tap.protocol import (
    FINAL_TENSORS,
    HIDDEN_PREFIX,
    ProtocolError,
)


@dataclass(frozen=True)
class Finding:
    """Something that is not as it must be; `file` is relative to the store."""

    file: PurePosixPath
    what: str


@dataclass(frozen=True)
class StoreReport:
    """What a check has seen; `missing` samples have no fate yet, which is no fault of the store."""

    n_samples: int
    stored: int
    skipped: int
    failed: int
    n_parts: int
    n_tokens: int
    n_bytes: int
    quarantined: int
    findings: tuple[Finding, ...]

    @property
    def missing(self) -> int:
        """Samples of the dataset that the ledger does not mention."""
        return self.n_samples - self.stored - self.skipped - self.failed


@dataclass(frozen=True)
class CheckProgress:
    """How far a check is."""

    n_stored: int
    n_checked: int
    bytes_checked: int


def check_remote(url: str, observe: Callable[[CheckProgress], None] = lambda progress: None) -> StoreReport:
    """Check a store at an fsspec URL: every file is brought here, one after the other; raises as `check_store`."""
    remote = RemoteSamples(url)
    with tempfile.TemporaryDirectory(prefix="auxtap-check-") as folder:
        path = Path(folder)
        try:
            (path / SAMPLES).mkdir()
            found = [remote.fetch(name, path / name) for name in (LEDGER, MANIFEST)]
        except OSError as error:
            raise ExtractionError(
                f"store {url} cannot be read: {error}",
                hint="is the package for its protocol installed, and are its credentials set?",
            ) from None
        if not found[1]:
            raise ExtractionError(f"{url} is no store: it has no {MANIFEST}", hint="give what extract --out made")
        return _StoreCheck(path, read_manifest(path / MANIFEST), observe, remote).run()


def check_store(path: Path, observe: Callable[[CheckProgress], None] = lambda progress: None) -> StoreReport:
    """Read every file of a store and hold it against manifest and ledger.

    Raises:
        ExtractionError: there is no store, or an extraction is writing into it.
        IntegrityError: the manifest is unreadable.
        UsageError: its format needs a package that is not installed.
    """
    manifest = open_manifest(path)
    with _unwritten(path):
        return _StoreCheck(path, manifest, observe).run()


@contextlib.contextmanager
def _unwritten(path: Path) -> Iterator[None]:
    """Keep writers out where we may; a store that we cannot write to has none of ours."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(held_lock(path / LOCK, wait=False))
        except BlockingIOError:
            raise ExtractionError(f"an extraction is writing into store {path}", hint="wait for its end") from None
        except OSError:
            pass
        yield


class _StoreCheck:
    """One pass over a store."""

    def __init__(
        self,
        path: Path,
        manifest: StoreManifest,
        observe: Callable[[CheckProgress], None],
        remote: RemoteSamples | None = None,
    ) -> None:
        self._path = path
        self._remote = remote
        self._manifest = manifest
        self._holdout = parse_holdout(manifest.dataset.holdout) if manifest.dataset.holdout else None
        self._observe = observe
        self._format: PartFormat = part_format(manifest.part_format)
        self._findings: list[Finding] = []
        self._bytes = 0

    def run(self) -> StoreReport:
        self._check_manifest()
        ledger = scan_ledger(self._path / LEDGER)
        for bad in ledger.bad_lines:
            self._find(LEDGER, f"line {bad.number}: {bad.reason}")
        if ledger.torn_bytes:
            self._find(LEDGER, f"its last line is cut short ({ledger.torn_bytes} bytes); extract again to mend it")
        last_lines = list(ledger.last_lines().values())
        self._check_indices(last_lines)
        stored = [line for line in last_lines if line.fate == STORED]
        for number, line in enumerate(stored, start=1):
            self._check_sample(line)
            self._observe(CheckProgress(len(stored), number, self._bytes))
        self._check_strangers({part.file for line in stored for part in line.parts})
        quarantine = self._path / QUARANTINE
        return StoreReport(
            n_samples=self._manifest.n_expected,
            stored=len(stored),
            skipped=sum(line.fate == SKIPPED for line in last_lines),
            failed=sum(line.fate == FAILED for line in last_lines),
            n_parts=sum(len(line.parts) for line in stored),
            n_tokens=sum(line.n_tokens for line in stored),
            n_bytes=self._bytes,
            quarantined=sum(1 for _ in quarantine.iterdir()) if quarantine.is_dir() else 0,
            findings=tuple(self._findings),
        )

    def _find(self, file: str, what: str) -> None:
        self._findings.append(Finding(PurePosixPath(file), what))

    def _check_manifest(self) -> None:
        states = [state for stage in self._manifest.stages for state in stage.states]
        expected = [f"{HIDDEN_PREFIX}{layer}" for layer in self._manifest.layers]
        expected += FINAL_TENSORS[self._manifest.final]
        if states != expected:
            self._find(MANIFEST, f"its stages hold {', '.join(states)}, its layers are {', '.join(expected)}")

    def _check_indices(self, lines: list[LedgerLine]) -> None:
        owners: dict[int, str] = {}
        for line in lines:
            if line.index >= self._manifest.dataset.n_samples:
                self._find(LEDGER, f"{line.sample_id}: index {line.index} is outside the dataset")
            if line.index in owners:
                self._find(LEDGER, f"{line.sample_id} and {owners[line.index]} both have index {line.index}")
            owners[line.index] = line.sample_id

    def _check_sample(self, line: LedgerLine) -> None:
        parts = {part.stage: part for part in line.parts}
        if len(parts) != len(line.parts):
            self._find(LEDGER, f"{line.sample_id}: a stage stands twice")
        stages = {stage.pp: stage for stage in self._manifest.stages}
        for pp in sorted(stages.keys() - parts.keys()):
            missing = part_file(line.index, pp, self._format.suffix)
            self._find(missing, f"missing from the ledger: {line.sample_id} has no part of stage {pp}")
        for pp, part in parts.items():
            if pp not in stages:
                self._find(part.file, f"stage {pp} is none of the store's")
                continue
            try:
                self._check_part(line, part, stages[pp])
            except FileNotFoundError:
                self._find(part.file, "missing")
            except MalformedPartError as error:
                self._find(part.file, str(error))
            except ProtocolError as error:
                self._find(LEDGER, f"{line.sample_id}: {error}")
            except OSError as error:
                self._find(part.file, f"cannot be read: {error.strerror}")

    def _check_part(self, line: LedgerLine, part: LedgerPart, stage: StageStates) -> None:
        path = self._path / part.file
        if self._remote is not None and not self._remote.fetch(part.file, path):
            raise FileNotFoundError
        try:
            ids = bytearray()
            for what in check_part_file(path, self._format, PartClaim(self._manifest, stage, line, part), ids):
                self._find(part.file, what)
            self._bytes += path.stat().st_size
            self._check_split(line, bytes(ids))
        finally:
            if self._remote is not None:
                path.unlink(missing_ok=True)

    def _check_split(self, line: LedgerLine, ids: bytes) -> None:
        split = self._holdout.split_of(ids) if self._holdout is not None else ""
        if ids and line.split != split:
            self._find(LEDGER, f"{line.sample_id} is in split {line.split!r}, by its tokens it is in {split!r}")

    def _check_strangers(self, known: set[str]) -> None:
        """Name what lies in the store and is no part of it."""
        top = {MANIFEST, LEDGER, LOCK, SAMPLES, QUARANTINE, STATUS}
        for entry in sorted(self._path.iterdir()):
            if entry.name not in top:
                self._find(entry.name, "is no file of a store")
        if self._remote is not None:
            for name in sorted(self._remote.list_sizes(SAMPLES).keys() - known):
                self._find(name, "has no ledger line")
        samples = self._path / SAMPLES
        if samples.is_dir():
            for entry in sorted(samples.iterdir()):
                name = f"{SAMPLES}/{entry.name}"
                if name not in known:
                    self._find(name, "has no ledger line")


def require_sound(path: Path | str, report: StoreReport) -> None:
    """Raise when a check has found anything.

    Raises:
        IntegrityError: it has; says how much and where the first is.
    """
    if report.findings:
        first = report.findings[0]
        raise IntegrityError(
            f"store {path}: {len(report.findings)} findings, the first: {first.file}: {first.what}",
            hint="remove what is wrong and run the same extract again: it takes those samples anew",
        )
