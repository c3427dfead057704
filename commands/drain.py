"""`auxtap drain`: another host's spool to where the extractor can see it."""

import threading
import time
from pathlib import Path
from typing import Annotated

import typer


def drain(
    spool: Annotated[Path, typer.Argument(metavar="SPOOL", help="Folder that this host's taps write into.")],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="Folder on a shared disk; the extractor's --spool for this host.")
    ],
    until_idle: Annotated[
        float | None, typer.Option(min=0.1, help="End after so many seconds without a part. [default: go on]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Carry parts from this host's spool to a shared folder, checked on the way, until interrupted."""
    from auxtap.commands.extract_run import stop_signals
    from auxtap.commands.views import console, status_view
    from auxtap.extraction.run.job import StopRequest
    from auxtap.extraction.spool.relay import relay_spool

    stop = StopRequest()
    ended: threading.Event = stop.finish
    with stop_signals(stop):
        count = relay_spool(spool, target, say=console.say, stop=ended, until_idle_s=until_idle, clock=time.monotonic)
    status_view.show_relay(count, target, as_json=as_json)
