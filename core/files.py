"""Publish files so that a final name never holds half a file, digest them, and hold locks."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

BLOCK_BYTES = 1 << 20


def fsync_directory(path: Path) -> None:
    """Make renames within `path` durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish_bytes(path: Path, data: bytes) -> None:
    """Write `data` beside `path`, fsync, and rename it to `path`; parents are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def json_bytes(value: Any) -> bytes:
    """Encode `value` as people read it in a diff: indented, in the given key order, newline at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def publish_json(path: Path, value: Any) -> None:
    """Publish `value` as JSON under `path`."""
    publish_bytes(path, json_bytes(value))


def sha256_bytes(data: bytes) -> str:
    """Return the sha256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def read_blocks(file: BinaryIO, n_bytes: int | None = None) -> Iterator[bytes]:
    """Read `file` to its end, or at most `n_bytes` of it, in blocks of `BLOCK_BYTES`."""
    left = n_bytes
    while left is None or left > 0:
        block = file.read(BLOCK_BYTES if left is None else min(left, BLOCK_BYTES))
        if not block:
            return
        yield block
        left = None if left is None else left - len(block)


def sha256_file(path: Path) -> str:
    """Return the sha256 of the file's bytes in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in read_blocks(file):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def held_lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on `path` (made when absent) for the length of the block.

    Raises:
        BlockingIOError: `wait` is false and another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)
