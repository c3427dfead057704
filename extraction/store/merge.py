"""Join the stores of a dataset's shards into one."""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.core.files import fsync_directory, held_lock, publish_bytes, publish_json
from auxtap.extraction.store.ledger import LedgerLine, read_ledger
from auxtap.extraction.store.store import LEDGER, LOCK, MANIFEST, SAMPLES
from auxtap.extraction.store.store_manifest import StoreManifest, read_manifest


@dataclass(frozen=True)
class MergeSummary:
    """What a merge came to; `missing` samples have a fate in none of the shards."""

    n_samples: int
    n_shards: int
    stored: int
    skipped: int
    failed: int
    missing: int
    n_bytes: int
    copied: int


@dataclass(frozen=True)
class _ShardStore:
    path: Path
    manifest: StoreManifest
    lines: tuple[LedgerLine, ...]


def merge_stores(
    target: Path, shards: Sequence[Path], progress: Callable[[int], None] = lambda n: None
) -> MergeSummary:
    """Make `target` the store that one extraction of the whole dataset would have made.

    Files are linked where the file system allows it and copied elsewhere; the shards stay as they are. Killed in the
    middle, the same call goes on: what is there already is linked anew.

    Raises:
        UsageError: no shards are given.
        ExtractionError: they are not of one whole, one is being written into, or `target` is something else.
        IntegrityError: a shard's manifest or ledger is unreadable.
    """
    if not shards:
        raise UsageError("there is nothing to merge", hint="name the stores that extract --shard made")
    with contextlib.ExitStack() as stack:
        stores = [_open_shard(path, stack) for path in shards]
        _check_one_whole(stores)
        stack.enter_context(_own_target(target))
        lines = sorted((line for store in stores for line in store.lines), key=lambda line: line.index)
        copied = n_done = 0
        (target / SAMPLES).mkdir(mode=0o700, exist_ok=True)
        for store in stores:
            for line in store.lines:
                for part in line.parts:
                    copied += _bring(store.path / part.file, target / part.file)
                n_done += 1
                progress(n_done)
        fsync_directory(target / SAMPLES)
        text = "".join(json.dumps(line.to_json(), separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines)
        publish_bytes(target / LEDGER, text.encode())
        first = stores[0].manifest
        manifest = replace(first, shard="", run=secrets.token_hex(4), sessions=sum(s.manifest.sessions for s in stores))
        publish_json(target / MANIFEST, manifest.to_json())
    fates = [line.fate for line in lines]
    return MergeSummary(
        n_samples=first.dataset.n_samples,
        n_shards=len(stores),
        stored=fates.count("stored"),
        skipped=fates.count("skipped"),
        failed=fates.count("failed"),
        missing=first.dataset.n_samples - len(lines),
        n_bytes=sum(part.n_bytes for line in lines for part in line.parts),
        copied=copied,
    )


def _open_shard(path: Path, stack: contextlib.ExitStack) -> _ShardStore:
    try:
        manifest = read_manifest(path / MANIFEST)
        stack.enter_context(held_lock(path / LOCK, wait=False))
    except FileNotFoundError:
        raise ExtractionError(
            f"{path} is no store: it has no {MANIFEST}", hint="give the folders that extract --out --shard made"
        ) from None
    except BlockingIOError:
        raise ExtractionError(f"an extraction is writing into store {path}", hint="wait for its end") from None
    except OSError as error:
        raise ExtractionError(f"store {path} cannot be read: {error.strerror}", hint="check its permissions") from None
    return _ShardStore(path, manifest, tuple(read_ledger(path / LEDGER).last_lines().values()))


def _check_one_whole(stores: Sequence[_ShardStore]) -> None:
    first = stores[0]
    seen: dict[str, Path] = {}
    count = first.manifest.shard.partition("/")[2]
    owners: dict[int, Path] = {}
    for store in stores:
        if not store.manifest.shard:
            raise ExtractionError(
                f"{store.path} is no shard: it was extracted without --shard",
                hint="a store that was extracted whole needs no merge",
            )
        differences = first.manifest.differences(replace(store.manifest, shard=first.manifest.shard))
        if differences:
            raise ExtractionError(
                f"{store.path} and {first.path} are not shards of one store: {'; '.join(differences)}",
                hint="extract every shard from the same dataset with the same model, patch and layers",
            )
        shard = store.manifest.shard
        if shard in seen:
            raise ExtractionError(f"{store.path} and {seen[shard]} are both shard {shard}", hint="give each shard once")
        if shard.partition("/")[2] != count:
            raise ExtractionError(
                f"{store.path} is shard {shard}, {first.path} is one of {count}",
                hint="merge shards of one --shard I/N only",
            )
        seen[shard] = store.path
        for line in store.lines:
            if line.index in owners:
                raise ExtractionError(
                    f"sample {line.index} is in {owners[line.index]} and in {store.path}",
                    hint="the shards overlap: extract them again with one --shard I/N each",
                )
            owners[line.index] = store.path


@contextlib.contextmanager
def _own_target(target: Path) -> Iterator[None]:
    """Hold a folder that is empty or that an earlier merge began."""
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    strangers = sorted(entry.name for entry in target.iterdir() if entry.name not in (SAMPLES, LEDGER, LOCK))
    if (target / MANIFEST).exists():
        raise ExtractionError(f"{target} is a store already", hint="name a new folder")
    if strangers:
        raise ExtractionError(f"{target} is not empty: it holds {strangers[0]}", hint="name a new folder")
    try:
        with held_lock(target / LOCK, wait=False):
            yield
    except BlockingIOError:
        raise ExtractionError(
            f"another process writes into {target}", hint="wait for it, or name another target"
        ) from None
    except OSError as error:
        raise ExtractionError(
            f"store {target} cannot be written: {error.strerror or error}", hint="check its permissions and the disk"
        ) from None


def _bring(source: Path, target: Path) -> bool:
    """Link a file, or copy it where that cannot be; tell whether it was copied."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        temporary.hardlink_to(source)
        copied = False
    except OSError:
        with source.open("rb") as file, temporary.open("wb") as copy:
            shutil.copyfileobj(file, copy, 4 << 20)
            copy.flush()
            os.fsync(copy.fileno())
        copied = True
    temporary.replace(target)
    # Renaming one link of a file over another of the same leaves both.
    temporary.unlink(missing_ok=True)
    return copied
