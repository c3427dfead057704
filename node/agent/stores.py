"""Give a store's files away, many over one connection, each from where the receiver has got to."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from auxtap.core.errors import ExtractionError
from auxtap.core.files import read_blocks
from auxtap.extraction.store.store import LEDGER, MANIFEST


def look(store: Path) -> "dict[str, Any]":
    """Return the manifest and the size of the ledger, whose last line may be half written.

    Raises:
        ExtractionError: it is no store.
    """
    try:
        manifest = (store / MANIFEST).read_text()
    except FileNotFoundError:
        raise ExtractionError(
            f"{store} on the node is no store: it has no {MANIFEST}", hint="name it with --store, an absolute path"
        ) from None
    ledger = store / LEDGER
    return {"manifest": manifest, "ledger_bytes": ledger.stat().st_size if ledger.is_file() else 0}


def send(store: Path, wanted: "list[dict[str, Any]]") -> "Iterator[dict[str, Any]]":
    """Announce each file with the bytes that follow it on stdout as they are: from `offset` on, at most to `end`."""
    for each in wanted:
        with (store / each["file"]).open("rb") as file:
            size = file.seek(0, 2)
            left = max(0, min(size, each.get("end", size)) - each["offset"])
            file.seek(each["offset"])
            yield {"file": each["file"], "offset": each["offset"], "n_bytes": left}
            for block in read_blocks(file, left):
                sys.stdout.buffer.write(block)
                left -= len(block)
            if left:
                raise ExtractionError(f"{each['file']} became shorter while it was sent")
            sys.stdout.buffer.flush()


def asked_path(arguments: "Mapping[str, Any]") -> Path:
    """Return the store that a request names."""
    return Path(arguments["store"]).expanduser()
