"""Write a store's samples as a trainer's own files: in parallel, resumable, no final name on half a file.

What was done is kept beside the export and not in it (`.NAME.auxtap-export`): some loaders take every file they find.
"""

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.core.files import fsync_directory, held_lock
from auxtap.extraction.export.contract import TokenRow, TrainerFormat
from auxtap.extraction.export.export_record import DoneFile, ExportIdentity, ExportRecord, open_record
from auxtap.extraction.export.suitability import Selection, holdings_of_store, select_states
from auxtap.extraction.export.torch_file import require_torch, save, tensor_of
from auxtap.extraction.export.trainer_formats import trainer_format
from auxtap.extraction.export.vocabulary import choose_draft_vocabulary, count_trained
from auxtap.extraction.export.whole import WholeReader
from auxtap.extraction.export.whole_sample import SamplePlace
from auxtap.extraction.store.ledger import STORED, LedgerLine, read_ledger
from auxtap.extraction.store.store import LEDGER, open_manifest
from auxtap.extraction.store.store_manifest import StoreManifest

MAX_WORKERS = 8


@dataclass(frozen=True)
class ExportJob:
    """What is to be exported; without `layers` all that the store has, without `draft_vocab` no mapping.

    `split` takes the samples of that split only, empty all of them.
    """

    store: Path
    format: str
    out: Path
    layers: tuple[int, ...] = ()
    draft_vocab: int | None = None
    workers: int = 0
    split: str = ""


@dataclass(frozen=True)
class ExportProgress:
    """How far an export is."""

    n_samples: int
    n_done: int
    bytes_written: int


@dataclass(frozen=True)
class ExportSummary:
    """What an export came to; `missing` samples of the dataset have no states in the store, `skipped` never will.

    `linked` files share their bytes with the store; `already` were there before; `draft_share` of the trained tokens is
    in the draft vocabulary.
    """

    format: str
    layers: tuple[int, ...]
    finals: tuple[str, ...]
    n_samples: int
    written: int
    linked: int
    already: int
    skipped: int
    missing: int
    n_bytes: int
    draft_share: float | None


def export_store(job: ExportJob, observe: Callable[[ExportProgress], None] = lambda progress: None) -> ExportSummary:
    """Export every stored sample; killed in the middle, the same call goes on.

    Raises:
        UsageError: the format is unknown, cannot hold what the store has, or needs a package that is not installed.
        ExtractionError: there is no store, or `out` holds something else.
        IntegrityError: the store is not what its ledger says.
    """
    target = trainer_format(job.format)
    manifest = open_manifest(job.store)
    selection = select_states(holdings_of_store(job.store, manifest), target, job.layers)
    if job.draft_vocab is not None:
        if target.mapping_file is None:
            raise UsageError(f"format {target.name} has no vocabulary mapping", hint="leave --draft-vocab out")
        require_torch(f"{target.name} with --draft-vocab")
    target.check_available()
    lines = read_ledger(job.store / LEDGER).last_lines().values()
    if job.split and not manifest.dataset.holdout:
        raise UsageError(f"store {job.store} has no splits", hint="extract --holdout 1% makes train and holdout")
    all_stored = [line for line in lines if line.fate == STORED]
    chosen = (line for line in all_stored if job.split in ("", line.split))
    stored = sorted(chosen, key=lambda line: line.index)
    if job.split and all_stored and not stored:
        raise ExtractionError(f"store {job.store} holds no sample of split {job.split!r}", hint="train or holdout")
    if not stored:
        raise ExtractionError(f"store {job.store} holds no sample yet", hint="auxtap extract fills it")
    export = _Export(job, target, manifest, selection, stored)
    with export.opened():
        written, linked, already = export.write_samples(observe)
        share = export.write_extras()
    skipped = sum(line.fate == "skipped" for line in lines)
    return ExportSummary(
        format=target.name,
        layers=selection.layers,
        finals=selection.finals,
        n_samples=len(stored),
        written=written,
        linked=linked,
        already=already,
        skipped=skipped,
        missing=manifest.n_expected - len(all_stored) - skipped,
        n_bytes=export.n_bytes,
        draft_share=share,
    )


class _Export:
    """One run."""

    def __init__(
        self,
        job: ExportJob,
        target: TrainerFormat,
        manifest: StoreManifest,
        selection: Selection,
        stored: Sequence[LedgerLine],
    ) -> None:
        self._job = job
        self._target = target
        self._manifest = manifest
        self._stored = stored
        self._selection = selection
        self._reader = WholeReader(job.store, manifest, selection.layers, selection.finals)
        self._lock = threading.Lock()
        self._made: set[Path] = set()
        self.n_bytes = 0

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the export's record, and clear what an export that was killed left half written."""
        out = self._job.out
        identity = ExportIdentity(
            self._target.name,
            self._selection.layers,
            self._selection.finals,
            self._manifest.run,
            self._manifest.dataset.digest,
            self._job.split,
        )
        folder = out.with_name(f".{out.name}.auxtap-export")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with held_lock(folder / "lock", wait=False):
                self._record: ExportRecord = open_record(folder, identity, out)
                self._temporary = folder / "half"
                shutil.rmtree(self._temporary, ignore_errors=True)
                self._temporary.mkdir(mode=0o700)
                try:
                    yield
                finally:
                    self._record.close()
                    shutil.rmtree(self._temporary, ignore_errors=True)
        except BlockingIOError:
            raise ExtractionError(f"another export is writing into {out}", hint="wait for its end") from None
        except OSError as error:
            raise ExtractionError(
                f"export {out} cannot be written: {error.strerror or error}", hint="run the same command again"
            ) from None

    def write_samples(self, observe: Callable[[ExportProgress], None]) -> tuple[int, int, int]:
        """Write what is not there yet; return how many were written, linked, and there before."""
        waiting: list[tuple[LedgerLine, SamplePlace]] = []
        wanted: set[str] = set()
        for row, line in enumerate(self._stored):
            place = SamplePlace(line.index, row, line.sample_id, line.n_tokens)
            wanted.add(str(self._target.file_of(place)))
            if not self._is_done(line, place):
                waiting.append((line, place))
        if waiting:
            self._remove_stale(wanted)
        already = len(self._stored) - len(waiting)
        linked = 0
        workers = self._job.workers or min(MAX_WORKERS, os.cpu_count() or 1)
        with ThreadPoolExecutor(workers, thread_name_prefix="auxtap-export") as pool:
            pending: set[Future[bool]] = set()
            n_done = already
            work = iter(waiting)
            try:
                while True:
                    # No more than is being worked on: a queue of futures of a million samples is no help to anybody.
                    while len(pending) < 2 * workers and (item := next(work, None)) is not None:
                        pending.add(pool.submit(self._write_one, *item))
                    observe(ExportProgress(len(self._stored), n_done, self.n_bytes))
                    if not pending:
                        break
                    ended, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for future in ended:
                        linked += future.result()
                        n_done += 1
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return len(waiting) - linked, linked, already

    def _is_done(self, line: LedgerLine, place: SamplePlace) -> bool:
        """Tell whether the record and the file agree that a sample was exported, under this name, of these bytes."""
        done = self._record.done.get(line.index)
        name = str(self._target.file_of(place))
        if done is None or (done.file, done.sources) != (name, _sources(line)):
            return False
        try:
            return (self._job.out / name).stat().st_size == done.n_bytes
        except OSError:
            return False

    def _remove_stale(self, wanted: set[str]) -> None:
        """Remove files of earlier runs whose names are no longer those of any sample, and what made them a whole."""
        for name in self._target.extra_files()[-1:]:
            (self._job.out / name).unlink(missing_ok=True)
        for done in self._record.done.values():
            if done.file not in wanted:
                (self._job.out / done.file).unlink(missing_ok=True)

    def _write_one(self, line: LedgerLine, place: SamplePlace) -> bool:
        """Write one sample; tell whether it was linked."""
        file = self._target.file_of(place)
        path = self._job.out / file
        temporary = self._temporary / f"{place.index}.tmp"
        sample = self._reader.read(line, place.row)
        linked = self._may_link(line) and _link(self._job.store / line.parts[0].file, temporary)
        if not linked:
            with temporary.open("wb") as opened:
                self._target.write(opened, sample)
                opened.flush()
                os.fsync(opened.fileno())
        n_bytes = temporary.stat().st_size
        self._publish(temporary, path)
        with self._lock:
            self._record.append(DoneFile(place.index, str(file), n_bytes, _sources(line)))
            self.n_bytes += n_bytes
        return linked

    def _may_link(self, line: LedgerLine) -> bool:
        whole = self._selection.everything and len(self._manifest.stages) == 1 and len(line.parts) == 1
        return whole and self._target.same_as == self._manifest.part_format

    def _publish(self, temporary: Path, path: Path) -> None:
        with self._lock:
            if path.parent not in self._made:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._made.add(path.parent)
        temporary.replace(path)
        fsync_directory(path.parent)

    def _rows(self) -> Iterator[TokenRow]:
        for row, line in enumerate(self._stored):
            yield self._reader.read_tokens(line, row)

    def write_extras(self) -> float | None:
        """Write what belongs to the export as a whole; return the share of the draft vocabulary, if one was wanted."""
        names = self._target.extra_files()
        if names:
            self._target.finish(self._temporary, self._rows())
            for name in names:
                self._publish_synced(self._temporary / name, self._job.out / name)
        if self._job.draft_vocab is None or self._target.mapping_file is None:
            return None
        counts = count_trained(self._rows(), self._manifest.model.vocab_size)
        chosen = choose_draft_vocabulary(counts, self._job.draft_vocab)
        temporary = self._temporary / "vocab_mapping.pt"
        with temporary.open("wb") as file:
            d2t = tensor_of(chosen.d2t, "I64", chosen.d2t.shape)
            save({"d2t": d2t, "t2d": tensor_of(chosen.t2d, "U8", chosen.t2d.shape).bool()}, file)
        self._publish_synced(temporary, self._job.out / self._target.mapping_file)
        return chosen.share

    def _publish_synced(self, temporary: Path, path: Path) -> None:
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        self._publish(temporary, path)


def _sources(line: LedgerLine) -> tuple[str, ...]:
    return tuple(part.digest for part in line.parts)


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def default_export_folder(store: Path, name: str) -> Path:
    """Return where `extract --format` puts a trainer's files: beside the store."""
    return store.with_name(f"{store.name}.{name}")
