"""`auxtap status`: how far a store is, from another terminal."""

from pathlib import Path
from typing import Annotated

import typer


def status(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Store that auxtap extract makes.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say how far a store is, also while it is written."""
    from auxtap.extraction.status import read_status
    from auxtap.ui import status_view

    status_view.show_status(read_status(store), store, as_json=as_json)
