"""The reader's side of the spool: one directory of ours, held open, nothing in it trusted."""

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from auxtap.core.errors import ExtractionError
from auxtap.tap import protocol

MAX_RECORD_BYTES = 1 << 20


class ForeignFileError(Exception):
    """Something in the spool is no plain file of ours."""


class SpoolDirectory:
    """A spool; every name is resolved relative to the open directory and never through a link."""

    def __init__(self, path: Path) -> None:
        """Open `path`.

        Raises:
            ExtractionError: it is missing, no directory, a link, another user's, or open to others.
        """
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ExtractionError(
                f"spool {path} cannot be opened: {error.strerror}",
                hint="give --spool the directory that auxtap serve printed, not a link to it",
            ) from None
        status = os.fstat(self._handle)
        reason = None
        if status.st_uid != os.geteuid():
            reason = f"belongs to uid {status.st_uid}, not to {os.geteuid()}"
        elif stat.S_IMODE(status.st_mode) & 0o077:
            reason = f"has mode {stat.S_IMODE(status.st_mode):04o}; it must be 0700"
        if reason is not None:
            os.close(self._handle)
            raise ExtractionError(
                f"spool {path} {reason}", hint="others must not be able to plant files in it: chmod 700"
            )
        self._identity = (status.st_dev, status.st_ino)

    def __enter__(self) -> "SpoolDirectory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A thread that was given up may still come by: it must not meet another file of the same number.
        handle, self._handle = self._handle, -1
        os.close(handle)

    def names(self) -> list[str]:
        """Return what lies in the spool."""
        return os.listdir(self._handle)  # noqa: PTH208 - relative to the open directory

    def holds(self, name: str) -> bool:
        """Tell whether anything of that name is there, links included."""
        try:
            os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def open_file(self, name: str) -> int:
        """Open a plain file of ours for reading and return its descriptor.

        Raises:
            FileNotFoundError: it is not there.
            ForeignFileError: it is a link, no plain file, or another user's.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(name, flags, dir_fd=self._handle)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ForeignFileError(f"{name} is no plain file ({error.strerror})") from None
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            os.close(handle)
            raise ForeignFileError(f"{name} is no plain file of uid {os.geteuid()}")
        return handle

    def read_record(self, name: str) -> bytes:
        """Read a small file whole.

        Raises:
            FileNotFoundError: it is not there.
            ForeignFileError: it is not ours, or larger than `MAX_RECORD_BYTES`.
        """
        with os.fdopen(self.open_file(name), "rb") as file:
            data = file.read(MAX_RECORD_BYTES + 1)
        if len(data) > MAX_RECORD_BYTES:
            raise ForeignFileError(f"{name} is larger than any record")
        return data

    def remove(self, name: str) -> None:
        """Remove `name` when it is there."""
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(name, dir_fd=self._handle)

    def create(self, name: str) -> int:
        """Create `name` for writing and return its descriptor.

        Raises:
            FileExistsError: something of that name is there.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._handle)

    def rename(self, old: str, new: str) -> None:
        """Rename within the spool, replacing `new`."""
        os.rename(old, new, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def free_bytes(self) -> int:
        """Return the space that is left for us on the spool's file system."""
        status = os.fstatvfs(self._handle)
        return status.f_bavail * status.f_frsize

    @property
    def device(self) -> int:
        """The number of the device that the spool lies on."""
        return self._identity[0]

    def is_in_place(self) -> bool:
        """Tell whether the path still leads to the directory that was opened."""
        try:
            status = self.path.lstat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def sweep(self, run: str, before_attempt: int) -> int:
        """Remove what older attempts of `run` left behind and return how many files that were."""
        n_removed = 0
        for name in self.names():
            part = protocol.parse_part_name(name)
            if part is not None and part.rid.run == run and part.rid.attempt < before_attempt:
                self.remove(name)
                n_removed += 1
        return n_removed


class SpoolUnion:
    """The spools of one server taken together: its stages may write on several hosts, each into its own."""

    def __init__(self, spools: Sequence[SpoolDirectory]) -> None:
        """Take directories that are open; a name is looked for in their order."""
        self._spools = tuple(spools)

    @property
    def path(self) -> Path:
        """The first of the directories, for messages."""
        return self._spools[0].path

    @property
    def paths(self) -> tuple[Path, ...]:
        """All directories."""
        return tuple(spool.path for spool in self._spools)

    def names(self) -> list[str]:
        """Return what lies in any of them."""
        return [name for spool in self._spools for name in spool.names()]

    def holds(self, name: str) -> bool:
        """Tell whether anything of that name is in one of them."""
        return any(spool.holds(name) for spool in self._spools)

    def open_file(self, name: str) -> int:
        """Open a plain file of ours; raises as `SpoolDirectory.open_file` does."""
        return self._of(name).open_file(name)

    def read_record(self, name: str) -> bytes:
        """Read a small file; raises as `SpoolDirectory.read_record` does."""
        return self._of(name).read_record(name)

    def remove(self, name: str) -> None:
        """Remove `name` wherever it is."""
        for spool in self._spools:
            spool.remove(name)

    def is_in_place(self) -> bool:
        """Tell whether every path still leads to the directory that was opened."""
        return all(spool.is_in_place() for spool in self._spools)

    def free_by_device(self) -> dict[int, int]:
        """Return the bytes that are free, by device."""
        return {spool.device: spool.free_bytes() for spool in self._spools}

    def sweep(self, run: str, before_attempt: int) -> int:
        """Remove what older attempts of `run` left behind and return how many files that were."""
        return sum(spool.sweep(run, before_attempt) for spool in self._spools)

    def _of(self, name: str) -> SpoolDirectory:
        return next((spool for spool in self._spools if spool.holds(name)), self._spools[0])


AnySpool = SpoolDirectory | SpoolUnion
