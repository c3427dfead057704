"""Begin a store, or go on in the one that is there: what it is of is compared, its lock is held."""

import contextlib
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from auxtap.core.errors import ExtractionError
from auxtap.core.files import fsync_directory, held_lock, publish_json
from auxtap.extraction.store.ledger import LedgerWriter, read_ledger
from auxtap.extraction.store.remote_samples import RemoteSamples
from auxtap.extraction.store.store import LEDGER, LOCK, MANIFEST, SAMPLES, Store
from auxtap.extraction.store.store_manifest import NO_RUN, StoreManifest, check_same, read_manifest

_TEMPORARY = re.compile(r"\..*\.tmp")


@contextlib.contextmanager
def open_store(
    path: Path, wanted: StoreManifest, warn: Callable[[str], None], remote: RemoteSamples | None = None
) -> Iterator[Store]:
    """Begin a store, or go on in the one that is there, for the length of the block.

    With `remote`, `path` is its catalog: manifest and ledger, brought from there when it is not here yet.

    The manifest that counts is the stored one; its count of sessions is raised before anything is sent.

    Raises:
        ExtractionError: another process writes into it, it is of something else, or it cannot be written.
        IntegrityError: manifest or ledger are unreadable.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with held_lock(path / LOCK, wait=False):
            if remote is not None and not (path / MANIFEST).exists():
                for name in (LEDGER, MANIFEST):
                    remote.fetch(name, path / name)
            manifest = _begin_session(path, wanted, warn)
            ledger = read_ledger(path / LEDGER)
            if ledger.torn_bytes:
                warn(f"{path / LEDGER}: its last line was cut short and is dropped ({ledger.torn_bytes} bytes)")
            writer = LedgerWriter(path / LEDGER, ledger.whole_bytes)
            fsync_directory(path)
            store = Store(path, manifest, writer, ledger.last_lines(), remote)
            try:
                yield store
            finally:
                store.close()
    except BlockingIOError:
        raise ExtractionError(
            f"another extraction is writing into store {path}", hint="wait for it, or give another --out"
        ) from None
    except OSError as error:
        raise ExtractionError(
            f"store {path} cannot be written: {error.strerror or error}",
            hint="what is stored stays; make room or mend the permissions, then run the same command again",
        ) from None


def _begin_session(path: Path, wanted: StoreManifest, warn: Callable[[str], None]) -> StoreManifest:
    try:
        stored = read_manifest(path / MANIFEST)
    except FileNotFoundError:
        strangers = sorted(entry.name for entry in path.iterdir() if not _is_own_beginning(entry))
        if strangers:
            raise ExtractionError(
                f"{path} is no store and not empty: it holds {strangers[0]}", hint="give a new --out"
            ) from None
        run = secrets.token_hex(4) if wanted.run == NO_RUN else wanted.run
        stored = replace(wanted, run=run, sessions=0)
    check_same(stored, wanted, path)
    changed = [
        key
        for key in sorted({*stored.server_arguments, *wanted.server_arguments})
        if stored.server_arguments.get(key) != wanted.server_arguments.get(key)
    ]
    if changed:
        warn(f"server arguments differ from those this store was begun with: {', '.join(changed)}")
    (path / SAMPLES).mkdir(mode=0o700, exist_ok=True)
    for folder in (path, path / SAMPLES):
        for entry in folder.iterdir():
            if _TEMPORARY.fullmatch(entry.name):
                entry.unlink()
    manifest = replace(stored, sessions=stored.sessions + 1)
    publish_json(path / MANIFEST, manifest.to_json())
    return manifest


def _is_own_beginning(entry: Path) -> bool:
    """Tell whether `entry` is what a first run leaves when it is killed before its manifest."""
    empty_folder = entry.name == SAMPLES and entry.is_dir() and not any(entry.iterdir())
    return entry.name == LOCK or empty_folder or _TEMPORARY.fullmatch(entry.name) is not None
