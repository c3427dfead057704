"""Trace, patch, serve and extract the auxiliary hidden states of SGLang.

For notebooks and trainers: `open_source(spec)` opens an SGLang tree, `open_store(path)` reads a finished store. What
they raise are the classes of `auxtap.core.errors`, all of them `AuxtapError`.
"""

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING

from auxtap.core.version import __version__ as __version__

if TYPE_CHECKING:
    from auxtap.extraction.store.reader import StoreReader
    from auxtap.tree import OpenTree

__all__ = ["__version__", "open_source", "open_store"]


def open_source(
    spec: str | PathLike[str],
    *,
    cache: str | PathLike[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> "OpenTree":
    """Open an SGLang tree to trace it, plan a capture and write a patch.

    `spec` is a git checkout (`PATH` or `PATH@REF`), an installed `sglang` folder, or a release such as `pypi:0.5.9`,
    which is downloaded once. `cache` is a folder for what is kept (default: the one of the commands); `progress` is
    called with a line for each slow step.

    Raises:
        SourceError: there is no such tree or release, or it cannot be fetched or read.
    """
    from pathlib import Path

    from auxtap.commands.context import cache_layout
    from auxtap.core.cache import CacheLayout
    from auxtap.tree import open_tree

    layout = cache_layout() if cache is None else CacheLayout(Path(cache).expanduser().resolve())
    return open_tree(str(spec), layout, progress)


def open_store(path: str | PathLike[str], split: str | None = None) -> "StoreReader":
    """Open a store that `auxtap extract` wrote: length, iteration, random access, a torch data set.

    `split` (`train` or `holdout`) takes a part of what `extract --holdout` has divided.

    Raises:
        ExtractionError: there is no store.
        IntegrityError: its manifest or ledger are unreadable.
        UsageError: a split is asked for and it has none.
    """
    from pathlib import Path

    from auxtap.extraction.store.reader import StoreReader

    return StoreReader(Path(path), split)
