"""Show engine environments, servers and the numeric proof."""

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from auxtap.commands.views import console
from auxtap.serving.engine_env import EngineEnvironment

# Without a terminal, one line of progress at most in this many seconds.
PLAIN_INTERVAL_S = 5.0


@contextlib.contextmanager
def setup_progress() -> Iterator[Callable[[str], None]]:
    """Show the latest step: on a terminal in one line that changes, elsewhere in a few lines."""
    if console.err().is_terminal:
        with console.err().status("checking the engine environment") as status:
            yield lambda message: status.update(escape(message))
        return
    last_at = -PLAIN_INTERVAL_S

    def say_some(message: str) -> None:
        nonlocal last_at
        if time.monotonic() - last_at >= PLAIN_INTERVAL_S:
            last_at = time.monotonic()
            console.say(message)

    yield say_some


def environment_record(environment: EngineEnvironment) -> Mapping[str, object]:
    """Return what `auxtap engine setup --json` prints."""
    return {
        "release": environment.release,
        "folder": str(environment.folder),
        "python": str(environment.python),
        "python_version": environment.python_version,
        "lock": environment.lock.name,
        "lock_digest": environment.lock.digest,
        "packages": len(environment.lock.requirements),
        "changed": environment.changed,
    }


def show_environment(environment: EngineEnvironment) -> None:
    """Say where an environment is and whether it was made now."""
    what = "is set up" if environment.changed else "was already set up"
    console.out().print(
        f"The engine environment for SGLang {environment.release} {what}: "
        f"{len(environment.lock.requirements)} pinned packages, Python {environment.python_version}",
        soft_wrap=True,
    )
    console.out().print(escape(str(environment.folder)), soft_wrap=True)


@dataclass(frozen=True)
class ServerRow:
    """A server that is ready."""

    url: str
    spool: Path
    log: Path
    pid: int
    release: str
    layers: tuple[int, ...]
    final: str
    ready_s: float


def server_record(server: ServerRow) -> Mapping[str, object]:
    """Return what `auxtap serve --json` prints once the server is ready."""
    return {**asdict(server), "spool": str(server.spool), "log": str(server.log), "layers": list(server.layers)}


def show_server_line(server: ServerRow) -> None:
    """Print a ready server as one line of JSON, at once: whoever started auxtap is waiting for it."""
    sys.stdout.write(json.dumps(server_record(server)) + "\n")
    sys.stdout.flush()


def show_server(server: ServerRow) -> None:
    """Say where a ready server is and which command comes next."""
    spool = shlex.quote(str(server.spool))
    command = f"auxtap extract DATASET --server {server.url} --spool {spool} --out STORE"
    lines = (
        f"ready after {server.ready_s:.1f} s: {server.url}",
        f"captures:  {', '.join(map(str, server.layers))} and the final state ({server.final})",
        f"spool:     {server.spool}",
        f"log:       {server.log}",
        f"next:      {command}",
        "Ctrl-C stops the server.",
    )
    for line in lines:
        console.out().print(escape(line), soft_wrap=True)
    console.out().file.flush()


@dataclass(frozen=True)
class ProofRow:
    """One state of one case against the reference; without a state, `verdict` says why there is none.

    `holds` is None for a case that was not run.
    """

    model: str
    release: str
    setting: str
    state: str
    max_abs: float | None
    max_rel: float | None
    rows: int
    verdict: str
    holds: bool | None


def proof_table(rows: Sequence[ProofRow], tolerance: float) -> Table:
    """Return the table of a numeric proof."""
    table = Table(title=f"states against transformers, float32; equal is at most {tolerance:.0e} relative")
    for column in ("model", "release", "setting", "state"):
        table.add_column(column)
    for column in ("max abs", "max rel", "rows"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for row in rows:
        numbers = ("" if value is None else f"{value:.1e}" for value in (row.max_abs, row.max_rel))
        style = "dim" if row.holds is None else "green" if row.holds else "bold red"
        verdict = Text(row.verdict, style=style)
        table.add_row(row.model, row.release, row.setting, row.state, *numbers, str(row.rows), verdict)
    return table
