"""Bring a node's store here by ssh: each file compared with its digest, a ledger line written once its files are whole.

Whatever interrupts it, the same call goes on: files that are here are not sent again, one that is half here from there.
A store that is still being written is fetched as far as it is.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from auxtap.core.errors import ExtractionError, IntegrityError
from auxtap.core.files import fsync_directory, held_lock, publish_bytes, read_blocks
from auxtap.extraction.spool.part_bytes import digest_file
from auxtap.extraction.store.ledger import LedgerLine, LedgerPart, LedgerWriter, read_ledger
from auxtap.extraction.store.store import LEDGER, LOCK, MANIFEST, SAMPLES
from auxtap.extraction.store.store_manifest import read_manifest
from auxtap.node.node_session import NodeSession
from auxtap.node.ssh import ConnectionLostError

# Files asked for at once; a lost connection costs at most the rest of one block of the file that was on its way.
BATCH_FILES = 64


@dataclass(frozen=True)
class FetchCount:
    """What a fetch came to: `n_lines` of the ledger are here now, `n_files` and `n_bytes` came with this call."""

    n_lines: int
    n_files: int
    n_bytes: int


@dataclass(frozen=True)
class FetchProgress:
    """How far a fetch is."""

    n_lines: int
    n_here: int
    n_bytes: int


Observer = Callable[[FetchProgress], None]


def fetch_store(session: NodeSession, remote: str, target: Path, observe: Observer) -> FetchCount:
    """Make `target` what `remote` is on the node, or as much of it as is there.

    Raises:
        ExtractionError: there is no store, `target` is of another one, or it cannot be written.
        IntegrityError: the node's own files are not what its ledger says.
    """
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        (target / SAMPLES).mkdir(mode=0o700, exist_ok=True)
        with held_lock(target / LOCK, wait=False):
            return _Fetch(session, remote, target, observe).carry_out()
    except BlockingIOError:
        raise ExtractionError(f"another process writes into {target}") from None
    except OSError as error:
        raise ExtractionError(
            f"{target} cannot be written: {error.strerror or error}", hint="make room, then run the same command again"
        ) from None


class _Fetch:
    def __init__(self, session: NodeSession, remote: str, target: Path, observe: Observer) -> None:
        self._agent = session.agent
        self._remote = remote
        self._target = target
        self._observe = observe
        self._n_files = self._n_bytes = 0

    def carry_out(self) -> FetchCount:
        found = self._agent.call("store-look", {"store": self._remote})
        lines = self._ledger(found["ledger_bytes"])
        self._begin(found["manifest"])
        ledger = read_ledger(self._target / LEDGER)
        here = ledger.last_lines()
        writer = LedgerWriter(self._target / LEDGER, ledger.whole_bytes)
        try:
            pending = [line for line in lines if here.get(line.sample_id) != line or not self._holds(line)]
            n_here = len(lines) - len(pending)
            for begin in range(0, len(pending), BATCH_FILES):
                batch = pending[begin : begin + BATCH_FILES]
                self._bring([part for line in batch for part in line.parts])
                fsync_directory(self._target / SAMPLES)
                for line in batch:
                    writer.append(line)
                n_here += len(batch)
                self._observe(FetchProgress(len(lines), n_here, self._n_bytes))
        finally:
            writer.close()
        return FetchCount(len(lines), self._n_files, self._n_bytes)

    def _ledger(self, n_bytes: int) -> list[LedgerLine]:
        """Read the node's ledger; the last line of an id wins."""
        temporary = self._target / f".{LEDGER}.node.tmp"
        temporary.unlink(missing_ok=True)
        self._receive([(LEDGER, temporary, n_bytes)])
        try:
            return sorted(read_ledger(temporary).last_lines().values(), key=lambda line: line.index)
        finally:
            temporary.unlink()

    def _begin(self, text: str) -> None:
        """Put the manifest here, or find that of the same store."""
        path = self._target / MANIFEST
        temporary = path.with_name(f".{MANIFEST}.node.tmp")
        temporary.write_text(text)
        try:
            theirs = read_manifest(temporary)
            if path.exists():
                ours = read_manifest(path)
                differences = [] if ours.run == theirs.run else ["run", *ours.differences(theirs)]
                if differences:
                    raise ExtractionError(
                        f"{self._target} holds another store: {'; '.join(differences)}", hint="name a new folder"
                    )
            elif strangers := self._strangers():
                raise ExtractionError(f"{self._target} is not empty: it holds {strangers[0]}", hint="name a new folder")
        finally:
            temporary.unlink()
        publish_bytes(path, text.encode())

    def _strangers(self) -> list[str]:
        own = (SAMPLES, LEDGER, LOCK)
        return sorted(e.name for e in self._target.iterdir() if e.name not in own and not e.name.startswith("."))

    def _holds(self, line: LedgerLine) -> bool:
        return all(_size(self._target / part.file) == part.n_bytes for part in line.parts)

    def _bring(self, parts: Sequence[LedgerPart]) -> None:
        """Bring files that are not whole here; each is compared before it gets its name."""
        missing = [part for part in parts if _size(self._target / part.file) != part.n_bytes]
        self._receive([(part.file, self._half(part), part.n_bytes) for part in missing])
        for part in missing:
            half = self._half(part)
            if digest_file(half, part.digest) != part.digest:
                half.unlink()
                raise IntegrityError(
                    f"{part.file} of {self._remote} does not have the digest of its ledger line",
                    hint="run auxtap check on the node; run the same command again if it is sound there",
                )
            half.replace(self._target / part.file)
            self._n_files += 1

    def _half(self, part: LedgerPart) -> Path:
        path = self._target / part.file
        return path.with_name(f".{path.name}.fetch")

    def _receive(self, wanted: Sequence[tuple[str, Path, int]]) -> None:
        """Add to each file what is missing of it, over any number of lost connections."""

        def receive() -> None:
            missing = [each for each in wanted if _size(each[1]) < each[2] or not each[1].exists()]
            asked = [{"file": file, "offset": _size(path), "end": n_bytes} for file, path, n_bytes in missing]
            if not asked:
                return
            arguments = {"store": self._remote, "files": asked}
            with self._agent.pull("store-send", arguments, len(asked)) as files:
                for (header, source), (_, path, _) in zip(files, missing, strict=True):
                    self._append(path, source, header["n_bytes"])

        self._agent.again(receive)

    def _append(self, path: Path, source: BinaryIO, n_bytes: int) -> None:
        with path.open("ab") as file:
            for block in read_blocks(source, n_bytes):
                file.write(block)
                n_bytes -= len(block)
                self._n_bytes += len(block)
            if n_bytes:
                # What has come stays: the next connection goes on behind it.
                raise ConnectionLostError("it ended in the middle of a file")
            file.flush()
            os.fsync(file.fileno())


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0
