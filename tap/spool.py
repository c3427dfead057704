"""The spool directory and the parts in it, opened so that nobody else's file is ever followed or written."""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from . import protocol
from .config import RefusedError

READ_BACK_BYTES = 8 << 20


class SpoolDirectory:
    """A directory of ours, held open; every name is resolved relative to it and never through a link."""

    def __init__(self, path: Path) -> None:
        """Open `path`.

        Raises:
            RefusedError: it is missing, no directory, a link, another user's, or open to others.
        """
        try:
            self.handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise RefusedError(f"spool {path} cannot be opened: {error.strerror}") from None
        status = os.fstat(self.handle)
        reason = None
        if status.st_uid != os.geteuid():
            reason = f"belongs to uid {status.st_uid}, not to {os.geteuid()}"
        elif stat.S_IMODE(status.st_mode) & 0o077:
            reason = f"has mode {stat.S_IMODE(status.st_mode):04o}; it must be 0700"
        elif not os.access(".", os.W_OK, dir_fd=self.handle):
            reason = "is not writable"
        if reason is not None:
            os.close(self.handle)
            raise RefusedError(f"spool {path} {reason}")

    def create(self, name: str) -> int:
        """Create `name` for reading and writing and return its file descriptor.

        Raises:
            FileExistsError: something of that name is there.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self.handle)

    def rename(self, old: str, new: str) -> None:
        """Rename within the spool, replacing `new`."""
        os.rename(old, new, src_dir_fd=self.handle, dst_dir_fd=self.handle)

    def remove(self, name: str) -> None:
        """Remove `name` when it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.handle)

    def names(self) -> list[str]:
        """Return what lies in the spool."""
        return os.listdir(self.handle)  # noqa: PTH208 - relative to the open directory

    def publish_json(self, name: str, value: dict[str, object]) -> None:
        """Put a JSON record under `name` in one step."""
        temporary = f".{name}.{os.getpid()}.tmp"
        self.remove(temporary)
        handle = self.create(temporary)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(json.dumps(value).encode())
            self.rename(temporary, name)
        except BaseException:
            self.remove(temporary)
            raise

    def lock(self, name: str) -> int:
        """Hold `name` as a lock until the process ends; return its descriptor.

        Raises:
            RefusedError: another process holds it.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            handle = os.open(name, flags, 0o600, dir_fd=self.handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError("another server writes into this spool; give each server its own") from None
        except OSError as error:
            raise RefusedError(f"spool lock {name} cannot be taken: {error.strerror}") from None
        return handle


class Part:
    """One part while it is written: of its full size from the start, rows put at their place, sealed when all came."""

    def __init__(self, spool: SpoolDirectory, name: protocol.PartName, layout: protocol.PartLayout, nonce: str) -> None:
        """Make the file, header first.

        It is sized, not allocated: in a tmpfs that would be a second pass over its memory. A spool without room shows
        when rows are written.

        Raises:
            OSError: it cannot be made; nothing is left behind.
        """
        self.spool = spool
        self.name = name
        self.layout = layout
        self.nonce = nonce
        self._algorithm = protocol.best_digest()
        header = self._header(protocol.blank_digest(self._algorithm))
        self._data_offset = len(header)
        self._covered: list[tuple[int, int]] = []
        # The digest is taken of what is written as long as that comes in the order of the file: all of a prompt that
        # is prefilled in one piece. What came otherwise is read back in the end.
        self._digest = protocol.new_digest(self._algorithm)
        self._digested = 0
        self._handle = spool.create(str(name))
        try:
            os.ftruncate(self._handle, self._data_offset + layout.data_bytes)
            self._write_at(header, 0)
        except BaseException:
            self.abandon()
            raise

    def _header(self, digest: str) -> bytes:
        name = self.name
        metadata = protocol.PartMetadata(str(name.rid), self.nonce, name.pp, name.dp, digest)
        return protocol.encode_header(self.layout.slots, metadata.to_header())

    def _write_at(self, data: bytes | memoryview, offset: int) -> None:
        view = memoryview(data).cast("B")
        while view:
            written = os.pwrite(self._handle, view, offset)
            view, offset = view[written:], offset + written

    def write_rows(self, slot_name: str, first_row: int, data: bytes | memoryview) -> None:
        """Put the rows that `data` holds at `first_row` of a tensor; the same rows may come again."""
        slot = self.layout.slot(slot_name)
        offset = slot.offset + first_row * slot.row_bytes
        if offset < self._digested:
            self._digest, self._digested = protocol.new_digest(self._algorithm), 0
        if offset == self._digested:
            self._digest.update(data)
            self._digested += len(data)
        self._write_at(data, self._data_offset + offset)

    def cover(self, first_row: int, n_rows: int) -> bool:
        """Note that these rows are there in every tensor; tell whether none is missing now."""
        merged: list[tuple[int, int]] = []
        for begin, end in sorted([*self._covered, (first_row, first_row + n_rows)]):
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        self._covered = merged
        return merged[0][0] == 0 and merged[0][1] >= self.layout.n_tokens

    def seal(self) -> None:
        """Complete the digest, put it into the header and rename to `.ready`."""
        for block in self._read_back(self._digested):
            self._digest.update(block)
        self._write_at(self._header(f"{self._algorithm}:{self._digest.hexdigest()}"), 0)
        os.close(self._handle)
        self._handle = -1
        ready = protocol.PartName(self.name.rid, self.name.pp, self.name.dp, protocol.READY)
        self.spool.rename(str(self.name), str(ready))

    def _read_back(self, begin: int) -> Iterator[bytes]:
        offset, end = self._data_offset + begin, self._data_offset + self.layout.data_bytes
        while offset < end:
            block = os.pread(self._handle, min(READ_BACK_BYTES, end - offset), offset)
            if not block:
                raise OSError("part is shorter than it was made")
            yield block
            offset += len(block)

    def abandon(self) -> None:
        """Close and remove the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self.spool.remove(str(self.name))
