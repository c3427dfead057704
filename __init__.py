"""Trace, patch, serve and extract the auxiliary hidden states of SGLang.

For notebooks and trainers: `open_store(path)` reads a finished store.
"""

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from auxtap.extraction.reader import StoreReader

__version__ = "0.1.0"
__all__ = ["__version__", "open_store"]


def open_store(path: str | PathLike[str]) -> "StoreReader":
    """Open a store that `auxtap extract` wrote: length, iteration, random access, a torch data set.

    Raises:
        ExtractionError: there is no store.
        IntegrityError: its manifest or ledger are unreadable.
    """
    from pathlib import Path

    from auxtap.extraction.reader import StoreReader

    return StoreReader(Path(path))
