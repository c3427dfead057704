"""The samples of a store at an fsspec URL, such as s3://; its manifest and ledger are kept in a folder here."""

import errno
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from auxtap.core.errors import UsageError
from auxtap.extraction.spool.part_bytes import digest_stream

# Where a name appears only when its bytes are whole, and renaming would be a copy.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "r2"})
T = TypeVar("T")


class RemoteSamples:
    """Files below one URL; whatever the protocol's own package raises comes out as an OSError."""

    def __init__(self, url: str) -> None:
        """Find the file system of `url`.

        Raises:
            UsageError: fsspec, or the package for that protocol, is not installed.
        """
        try:
            import fsspec
        except ImportError:
            raise UsageError("a store at a URL needs fsspec", hint="pip install 'auxtap[remote]'") from None
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UsageError(f"cannot store at {url}: {error}", hint="install the package it names") from None
        self.url = url
        protocols = self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,)
        self._publishes_whole = bool(_OBJECT_STORES.intersection(protocols))
        self._sizes: dict[str, int] | None = None

    def size(self, name: str) -> int | None:
        """Return a file's size as a listing at the start gave it, None when it was not there."""
        if self._sizes is None:
            self._sizes = self.list_sizes(name.rpartition("/")[0])
        return self._sizes.get(name)

    def list_sizes(self, folder: str) -> dict[str, int]:
        """List a folder afresh."""

        def look() -> dict[str, int]:
            self._fs.invalidate_cache()
            try:
                entries = self._fs.ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
            names = ((str(entry["name"]).rpartition("/")[2], entry) for entry in entries)
            return {f"{folder}/{name}": int(entry.get("size") or 0) for name, entry in names}

        return _guarded(look)

    def head(self, name: str, n_bytes: int) -> bytes:
        """Read the beginning of a file."""
        return _guarded(lambda: bytes(self._fs.cat_file(self._path(name), start=0, end=n_bytes)))

    def upload(self, local: Path, name: str, digest: str) -> None:
        """Publish a local file and read it back; it must have `digest`.

        Raises:
            OSError: it could not be written, or what is there now is something else.
        """
        path = self._path(name)
        temporary = path if self._publishes_whole else f"{path}.{secrets.token_hex(4)}.tmp"

        def put() -> None:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.put_file(str(local), temporary)
            found = self._digest(temporary, digest)
            if found != digest:
                self._fs.rm_file(temporary)
                raise OSError(errno.EIO, f"{name} was damaged on its way to {self.url}")
            if temporary != path:
                self._fs.mv(temporary, path)

        _guarded(put)

    def fetch(self, name: str, local: Path) -> bool:
        """Bring a file here; tell whether it was there."""

        def get() -> bool:
            try:
                self._fs.get_file(self._path(name), str(local))
            except FileNotFoundError:
                return False
            return True

        return _guarded(get)

    def put(self, local: Path, name: str) -> None:
        """Publish a small local file as it is now."""
        data = local.read_bytes()

        def pipe() -> None:
            self._fs.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(self._path(name), data)

        _guarded(pipe)

    def remove(self, name: str) -> None:
        """Remove a file when it is there."""

        def remove() -> None:
            try:
                self._fs.rm_file(self._path(name))
            except FileNotFoundError:
                return

        _guarded(remove)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _digest(self, path: str, like: str) -> str:
        with self._fs.open(path, "rb") as file:
            return digest_stream(file, like)


def _guarded(action: Callable[[], T]) -> T:
    try:
        return action()
    except OSError:
        raise
    except Exception as error:
        kind: Any = type(error).__name__
        raise OSError(errno.EIO, f"{kind}: {error}") from error
