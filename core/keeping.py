"""How whoever keeps a server running and an extractor find each other: two small files in the server's spool.

The keeper holds a lock there. An extractor that finds the server gone asks for another start, and names the start that
it means, so that no server is started again for a fault of the one before it.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auxtap.tap.protocol import is_descriptor_name

LOCK, REQUEST = ".keeper.lock", ".restart.json"


@dataclass(frozen=True)
class RestartRequest:
    """What an extractor asks of a keeper: `nonces` are those of the writers that it lost."""

    nonces: frozenset[str]
    reason: str


@contextlib.contextmanager
def keeping(spool: Path) -> Iterator[None]:
    """Be the keeper of the server that taps into `spool`, for the length of the block.

    Raises:
        BlockingIOError: another process is.
    """
    handle = os.open(spool / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield
        finally:
            for name in (REQUEST, LOCK):
                (spool / name).unlink(missing_ok=True)
    finally:
        os.close(handle)


def is_kept(spool: Path) -> bool:
    """Tell whether a living process keeps the server of `spool`."""
    with contextlib.suppress(OSError):
        handle = os.open(spool / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
    return False


def ask_for_restart(spool: Path, nonces: Collection[str], reason: str) -> None:
    """Ask the keeper of `spool` to start its server again."""
    temporary = spool / f"{REQUEST}.{os.getpid()}.tmp"
    temporary.unlink(missing_ok=True)
    temporary.write_text(json.dumps({"nonces": sorted(nonces), "reason": reason}))
    temporary.replace(spool / REQUEST)


def take_request(spool: Path) -> RestartRequest | None:
    """Take the request that lies in `spool`; one that means an earlier start is dropped."""
    path = spool / REQUEST
    record = _read(path)
    if not record:
        return None
    path.unlink(missing_ok=True)
    nonces = record.get("nonces")
    request = RestartRequest(frozenset(map(str, nonces if isinstance(nonces, list) else ())), str(record.get("reason")))
    return request if request.nonces & living_nonces(spool) else None


def living_nonces(spool: Path) -> frozenset[str]:
    """Return what the writers of a spool call their present start."""
    return frozenset(str(record.get("nonce")) for record in read_descriptors(spool)) - {"None"}


def read_descriptors(spool: Path) -> list[dict[str, Any]]:
    """Return what the writers of a spool say of themselves, as far as it can be read."""
    paths = (path for path in sorted(spool.glob("*.json")) if is_descriptor_name(path.name))
    return [record for record in map(_read, paths) if record]


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            value = json.loads(file.read(1 << 20))
        return value if isinstance(value, dict) else {}
    return {}
