"""The spool as a server's keeper sees it: made before the start, watched for its writers, removed when empty."""

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from auxtap.core import keeping
from auxtap.core.errors import ServerError
from auxtap.tap.protocol import FAILED, POST_NORM, READY, WRITING, is_descriptor_name

# Files of the tap beside each descriptor: its counters (`stats_name`), and the lock of the writer (tap/spool.py).
STATS, LOCKS = "stats-*.json", "rank-*.lock"


def prepare_spool(spool: Path) -> None:
    """Make the spool (0700) or take over an old one: descriptors and counters of a dead server are removed.

    Parts are left where they are; the extractor knows by their nonce whom they belong to.

    Raises:
        ServerError: it cannot be made or written, is a link, belongs to somebody else or is open to others, or a live
            server taps into it.
    """
    hint = "give another --spool, a folder that does not exist yet"
    try:
        spool.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        spool.mkdir(mode=0o700, exist_ok=True)
        status = spool.lstat()
    except OSError as error:
        raise ServerError(f"cannot make the spool {spool}: {error.strerror or error}", hint=hint) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ServerError(f"the spool {spool} is a link or belongs to another user", hint=hint)
    if status.st_mode & 0o077:
        raise ServerError(f"the spool {spool} is open to other users (mode {status.st_mode & 0o777:o})", hint=hint)
    if not os.access(spool, os.W_OK | os.X_OK):
        raise ServerError(f"the spool {spool} is not writable", hint=hint)
    for lock in spool.glob(LOCKS):
        if _is_held(lock):
            raise ServerError(f"the spool {spool} is in use by a running server ({lock.name})", hint=hint)
    for path in list(spool.iterdir()):
        if is_descriptor_name(path.name) or path.match(STATS):
            path.unlink(missing_ok=True)


def _is_held(lock: Path) -> bool:
    """Tell whether a live writer holds its lock; a dead one's was freed by the kernel."""
    with contextlib.suppress(OSError), lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def is_tapped(spool: Path) -> bool:
    """Tell whether a live server taps into `spool`."""
    return any(_is_held(lock) for lock in spool.glob(LOCKS))


def is_armed(spool: Path) -> bool:
    """Tell whether every writer (stage x data-parallel group) has published its descriptor."""
    records = keeping.read_descriptors(spool)
    ranks = {(record.get("pp_rank"), record.get("dp_rank")) for record in records}
    for record in records:
        pp_size, dp_size = record.get("pp_size"), record.get("dp_size")
        if type(pp_size) is int and type(dp_size) is int:
            return len(ranks) >= pp_size * dp_size
    return False


def other_final(spool: Path, wanted: str) -> str | None:
    """Return which final states the writers take when they are not those that are wanted; a tap that does not say
    takes the one after the norm."""
    found = {str(record.get("final", POST_NORM)) for record in keeping.read_descriptors(spool)}
    return None if found <= {wanted} else ", ".join(sorted(found))


def remove_spool(spool: Path) -> int:
    """Remove the spool of a server that has ended, unless finished parts lie in it; return how many do.

    A live server's spool stays as it is.
    """
    if is_tapped(spool):
        return 0
    left = len(list(spool.glob(f"*.{READY}")))
    if left:
        return left
    ours = (STATS, LOCKS, f"*.{FAILED}", f"*.{WRITING}", keeping.LOCK, keeping.REQUEST)
    for path in list(spool.glob("*")):
        if is_descriptor_name(path.name) or any(path.match(pattern) for pattern in ours):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        spool.rmdir()
    return 0
