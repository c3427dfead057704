"""`auxtap status`: how far a store is, from another terminal, or what runs on a node."""

from pathlib import Path
from typing import Annotated

import typer

from auxtap.core.errors import UsageError


def status(
    store: Annotated[Path | None, typer.Argument(metavar="[STORE]", help="Store that auxtap extract makes.")] = None,
    node: Annotated[
        str | None, typer.Option(metavar="NAME", help="Say instead what runs on the node of nodes/NAME.toml.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say how far a store is, also while it is written, or what runs on a node."""
    if (store is None) == (node is None):
        raise UsageError("one of STORE and --node is needed", hint="auxtap status STORE, or auxtap status --node NAME")
    if node is not None:
        from auxtap.commands.node import show_node_status

        show_node_status(node, as_json=as_json)
    if store is not None:
        from auxtap.commands.views import status_view
        from auxtap.extraction.run.status import read_status

        status_view.show_status(read_status(store), store, as_json=as_json)
