"""`auxtap merge`: the stores of a dataset's shards into one."""

from pathlib import Path
from typing import Annotated

import typer

from auxtap.core.errors import ExitCode


def merge(
    target: Annotated[Path, typer.Argument(metavar="STORE", help="New folder for the whole store.")],
    shards: Annotated[list[Path], typer.Argument(metavar="SHARD...", help="Stores that extract --shard made.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> int:
    """Join the stores of shards; their files are linked, or copied where that cannot be."""
    from auxtap.commands.views import status_view
    from auxtap.extraction.store.merge import merge_stores

    summary = merge_stores(target, shards)
    status_view.show_merge(summary, target, as_json=as_json)
    return ExitCode.CHECK_FAILED if summary.missing or summary.failed else ExitCode.DONE
