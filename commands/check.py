"""`auxtap check`: a store, verified from its bytes."""

from pathlib import Path
from typing import Annotated

import typer


def check(
    store: Annotated[str, typer.Argument(metavar="STORE", help="Store that auxtap extract made: a folder or a URL.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Verify every file of a store from its bytes."""
    from auxtap.commands.views import extract_view
    from auxtap.extraction.audit.integrity import check_remote, check_store, require_sound

    with extract_view.check_progress() as observe:
        report = check_remote(store, observe) if "://" in store else check_store(Path(store), observe)
    extract_view.show_report(report, store, as_json=as_json)
    require_sound(store, report)
