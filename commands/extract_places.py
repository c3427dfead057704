"""What options of extraction name: sizes, shards, servers with their spools, and places of stores."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from auxtap.commands.context import cache_layout
from auxtap.core.errors import UsageError

if TYPE_CHECKING:
    from auxtap.extraction.run.job import ServerPlace, Shard

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def pair_servers(urls: list[str], spools: list[Path]) -> "list[ServerPlace]":
    """Give every server its spool, or the only server all of them.

    Raises:
        UsageError: the numbers do not go together.
    """
    from auxtap.extraction.run.job import ServerPlace

    if len(urls) == 1 and spools:
        return [ServerPlace(urls[0], tuple(spools))]
    if len(urls) != len(spools):
        raise UsageError(
            f"{len(urls)} times --server and {len(spools)} times --spool",
            hint="give one --spool for each --server in the same order; a single server may have several",
        )
    return [ServerPlace(url, (path,)) for url, path in zip(urls, spools, strict=True)]


@dataclass(frozen=True)
class StorePlace:
    """Where a store is: its folder, and the URL of its samples when they are not in it."""

    folder: Path
    url: str | None


def find_store(out: str, catalog: Path | None) -> StorePlace:
    """Return the place of a store that was named by a path or a URL.

    Raises:
        UsageError: a catalog is named for a folder.
    """
    if "://" not in out:
        if catalog is not None:
            raise UsageError("--catalog is for stores at a URL", hint="a store in a folder keeps its ledger there")
        return StorePlace(Path(out), None)
    from auxtap.core.files import sha256_bytes

    url = out.rstrip("/")
    folder = catalog or cache_layout().root / "stores" / sha256_bytes(url.encode())[:16]
    return StorePlace(folder, url)


def parse_shard(text: str) -> "Shard":
    """Read `I/N`.

    Raises:
        UsageError: it is no such thing.
    """
    from auxtap.extraction.run.job import Shard

    match = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise UsageError(f"not a shard: {text!r}", hint="such as --shard 1/4, counted from 1")
    return Shard(int(match[1]), int(match[2]))


def parse_size(text: str) -> int:
    """Read a number of bytes such as `500000`, `64G` or `1.5TiB`; the letters are powers of 1024.

    Raises:
        UsageError: it is none, or zero.
    """
    match = _SIZE.fullmatch(text.strip())
    n_bytes = 0
    if match is not None:
        unit = (match[2] or "").lower().removesuffix("i")
        n_bytes = int(float(match[1]) * 1024 ** _EXPONENTS[unit])
    if n_bytes < 1:
        raise UsageError(f"not a size: {text!r}", hint="such as 64G")
    return n_bytes
