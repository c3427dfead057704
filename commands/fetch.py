"""`auxtap fetch`: a node's store brought here by ssh."""

from pathlib import Path
from typing import Annotated

import typer

from auxtap.core.errors import UsageError


def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Profile: NAME of nodes/NAME.toml, or the path of one.")],
    out: Annotated[Path, typer.Argument(metavar="STORE", help="Folder that becomes the same store here.")],
    store: Annotated[
        str | None, typer.Option(metavar="PATH", help="Store on the node. [default: the profile's storage.store]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Bring a node's store here, compared file by file; run again, it continues."""
    from auxtap.commands.views import console, node_view
    from auxtap.node.fetch import fetch_store
    from auxtap.node.library import find_profile
    from auxtap.node.node_session import open_node

    if store is not None and not store.startswith(("/", "~/")):
        raise UsageError(f"--store {store} is no absolute path on the node", hint="leave it out to use the profile's")
    profile = find_profile(name)
    with open_node(profile, console.say) as session, node_view.fetch_progress() as observe:
        remote = store or session.profile.storage.store
        count = fetch_store(session, remote, out, observe)
    node_view.show_fetched(count, out, as_json=as_json)
