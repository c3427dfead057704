"""`auxtap doctor`: what this machine has, what is missing for which command, and the remedy."""

from typing import Annotated

import typer

from auxtap.commands.context import cache_layout
from auxtap.core.errors import CheckFailedError


def doctor(
    online: Annotated[bool, typer.Option("--online", help="Ask the package index as well.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say what this machine lacks, for which command, and what to do about it."""
    from auxtap.commands.surroundings import examine
    from auxtap.commands.views import console, node_view
    from auxtap.node.checks import FAIL

    lines = list(examine(cache_layout(), online=online))
    if json_output:
        console.emit_json(node_view.check_list(lines))
    else:
        node_view.show_checks(lines)
    failed = [line.name for line in lines if line.verdict == FAIL]
    if failed:
        raise CheckFailedError(f"{', '.join(failed)}: auxtap cannot work like this", hint="the remedy is above")
