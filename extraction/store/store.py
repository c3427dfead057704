"""The finished data set: manifest, ledger and samples; a file has its final name only when it is whole and good."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from auxtap.core.errors import ExtractionError
from auxtap.core.files import fsync_directory, publish_json
from auxtap.extraction.datasets.reading import Sample
from auxtap.extraction.store.formats.part_formats import part_format
from auxtap.extraction.store.formats.stored_part import MalformedPartError, PartContent, PartFormat, stored_content
from auxtap.extraction.store.ledger import STORED, LedgerLine, LedgerPart, LedgerWriter
from auxtap.extraction.store.remote_samples import RemoteSamples
from auxtap.extraction.store.store_manifest import STORE_VERSION, StoreManifest, read_manifest
from auxtap.tap.protocol import INPUT_IDS, PartLayout, ProtocolError, best_digest, decode_header, new_digest

MANIFEST, LEDGER, LOCK, SAMPLES, QUARANTINE = "manifest.json", "ledger.jsonl", ".lock", "samples", "quarantine"
# How far a running extraction is; published over and over, read by `auxtap status`.
STATUS = "status.json"
# How often manifest and ledger are put beside remote samples.
PUBLISH_EVERY_S = 60.0
_HEAD_BYTES = 64 << 10


def open_manifest(store: Path) -> StoreManifest:
    """Return what a store is of.

    Raises:
        ExtractionError: there is none, or it cannot be read.
        IntegrityError: its manifest is unreadable.
    """
    try:
        return read_manifest(store / MANIFEST)
    except FileNotFoundError:
        raise ExtractionError(
            f"{store} is no store: it has no {MANIFEST}", hint="give what extract --out made"
        ) from None
    except OSError as error:
        raise ExtractionError(
            f"store {store} cannot be read: {error.strerror}", hint="name the folder that extract --out made"
        ) from None


@dataclass(frozen=True)
class PartSource:
    """A part that is to be stored; reading `blocks` to the end proves it, and raises when it is bad."""

    stage: int
    dp: int
    layout: PartLayout
    tap_digest: str
    blocks: Iterable[memoryview]


@dataclass(frozen=True)
class WrittenPart:
    """A part that lies in the store under a temporary name."""

    temporary: Path
    part: LedgerPart


class DigestingFile:
    """Passes writes on, and digests and counts them."""

    def __init__(self, file: BinaryIO) -> None:
        """Write to `file`."""
        self._file = file
        self._algorithm = best_digest()
        self._digest = new_digest(self._algorithm)
        self.n_bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`."""
        self._digest.update(data)
        n_written = self._file.write(data)
        self.n_bytes += n_written
        return n_written

    def flush(self) -> None:
        """Hand everything to the file."""
        self._file.flush()

    @property
    def digest(self) -> str:
        """What was written so far, as `algorithm:hexadecimal`."""
        return f"{self._algorithm}:{self._digest.hexdigest()}"


def part_file(index: int, stage: int, suffix: str) -> str:
    """Return a stored part's name, relative to the store."""
    return f"{SAMPLES}/{index:08d}.pp{stage}{suffix}"


def part_metadata(index: int, sample_id: str, stage: int, tap_digest: str) -> dict[str, str]:
    """Return what a stored part says of itself: nothing that differs from run to run."""
    return {
        "auxtap_store": str(STORE_VERSION),
        "id": sample_id,
        "index": str(index),
        "pp": str(stage),
        "tap_digest": tap_digest,
    }


class Store:
    """A store that this process alone writes into; safe for several threads. Made by `open_store`."""

    def __init__(
        self,
        path: Path,
        manifest: StoreManifest,
        ledger: LedgerWriter,
        lines: dict[str, LedgerLine],
        remote: RemoteSamples | None = None,
    ) -> None:
        """Take over what `open_store` has read; with `remote` the samples lie there."""
        self.path = path
        self._remote = remote
        self._published_at = time.monotonic()
        self.manifest = manifest
        self.format: PartFormat = part_format(manifest.part_format)
        self._ledger = ledger
        self._lines = lines
        self._lock = threading.Lock()
        self._closed = False

    def last_line(self, sample_id: str) -> LedgerLine | None:
        """Return what the ledger says of a sample so far."""
        return self._lines.get(sample_id)

    def holds(self, sample: Sample, contents: Callable[[int, str], PartContent]) -> bool:
        """Tell whether ledger and files agree that the sample is stored, without reading the tensors.

        `contents` gives what the part of a stage must hold, from the stage and the tap's digest.
        """
        line = self._lines.get(sample.sample_id)
        if line is None or line.fate != STORED:
            return False
        if (line.index, line.ids_digest) != (sample.index, sample.ids_digest()):
            return False
        if [part.stage for part in line.parts] != [stage.pp for stage in self.manifest.stages]:
            return False
        for part in line.parts:
            try:
                content = self._content(part)
            except (OSError, MalformedPartError, ProtocolError):
                return False
            if content is None:
                return False
            expected = contents(part.stage, part.tap_digest)
            if content.slots != expected.slots or (content.metadata and content.metadata != expected.metadata):
                return False
        return True

    def _content(self, part: LedgerPart) -> PartContent | None:
        """Read what a stored file holds, None when its size is not the ledger's."""
        if self._remote is not None:
            if self._remote.size(part.file) != part.n_bytes:
                return None
            header = decode_header(self._remote.head(part.file, min(part.n_bytes, _HEAD_BYTES)))
            return PartContent(header.slots, header.metadata)
        path = self.path / part.file
        return self.format.open(path).content if path.stat().st_size == part.n_bytes else None

    def write_part(self, sample: Sample, source: PartSource) -> WrittenPart:
        """Write one part under a temporary name, verifying it on the way.

        Raises:
            OSError: the store cannot take it. Whatever `source.blocks` raises. Nothing is left behind.
        """
        name = part_file(sample.index, source.stage, self.format.suffix)
        final = self.path / name
        temporary = final.with_name(f".{final.name}.{threading.get_ident()}.tmp")
        metadata = part_metadata(sample.index, sample.sample_id, source.stage, source.tap_digest)
        content = stored_content(source.layout, metadata)
        try:
            with temporary.open("wb") as file:
                sink = DigestingFile(file)
                self.format.write(cast(BinaryIO, sink), content, source.blocks, sample.loss_mask)
                file.flush()
                os.fsync(file.fileno())
            if self._remote is not None:
                self._remote.upload(temporary, name, sink.digest)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        states = tuple(slot.name for slot in source.layout.slots if slot.name != INPUT_IDS)
        part = LedgerPart(name, source.stage, source.dp, states, sink.n_bytes, sink.digest, source.tap_digest)
        return WrittenPart(temporary, part)

    def commit(self, written: Sequence[WrittenPart], line: LedgerLine) -> None:
        """Give a sample's parts their final names, then write its ledger line.

        Raises:
            ExtractionError: the store was closed meanwhile; the parts are dropped.
        """
        with self._lock:
            self._check_open()
            try:
                for item in written:
                    if self._remote is None:
                        item.temporary.replace(self.path / item.part.file)
                    else:
                        item.temporary.unlink()
                fsync_directory(self.path / SAMPLES)
                self._ledger.append(line)
            except BaseException:
                # Files without their line are nothing: better gone than found by a check.
                for item in written:
                    with contextlib.suppress(OSError):
                        (self.path / item.part.file).unlink(missing_ok=True)
                raise
            self._lines[line.sample_id] = line
            if time.monotonic() - self._published_at > PUBLISH_EVERY_S:
                self._publish_catalog()

    def record(self, line: LedgerLine) -> None:
        """Write the ledger line of a sample that is not stored, and drop files of it that did not hold."""
        with self._lock:
            self._check_open()
            for stage in self.manifest.stages:
                name = part_file(line.index, stage.pp, self.format.suffix)
                if self._remote is None:
                    (self.path / name).unlink(missing_ok=True)
                elif self._remote.size(name) is not None:
                    self._remote.remove(name)
            self._ledger.append(line)
            self._lines[line.sample_id] = line

    def quarantine(self, label: str, reason: str, received: Iterable[tuple[str, BinaryIO]]) -> Path:
        """Keep what was received of a bad sample, under `quarantine/label`, beside the reason."""
        folder = self.path / QUARANTINE / label
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = []
        for name, source in received:
            with source, (folder / name).open("wb") as target:
                while block := source.read(4 << 20):
                    target.write(block)
            files.append(name)
        publish_json(folder / "reason.json", {"reason": reason, "received": files})
        return folder

    def free_bytes(self) -> int | None:
        """Return the space that is left for us on the store's file system, None where nobody knows."""
        if self._remote is not None:
            return None
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def close(self) -> None:
        """End all writing; what another thread still holds is not published any more."""
        with self._lock:
            self._closed = True
            self._ledger.close()
            self._publish_catalog()

    def _publish_catalog(self) -> None:
        """Put manifest and ledger beside remote samples, so that they are a store for whoever comes by."""
        if self._remote is not None:
            self._published_at = time.monotonic()
            for name in (LEDGER, MANIFEST):
                self._remote.put(self.path / name, name)

    def _check_open(self) -> None:
        if self._closed:
            raise ExtractionError(f"store {self.path} is closed")
