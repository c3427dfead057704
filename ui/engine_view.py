"""Show engine environments, servers and the numeric proof."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from auxtap.serving.engine_env import EngineEnvironment
from auxtap.ui import console
from rich.markup import escape

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


def show_server(*, url: str, spool: Path, log: Path, layers: tuple[int, ...], seconds: float) -> None:
    """Say where a ready server is and which command comes next."""
    import shlex

    out = console.out()
    out.print(f"ready after {seconds:.1f} s: {url}", soft_wrap=True)
    out.print(f"captures:  {', '.join(map(str, layers))} and the final state", soft_wrap=True)
    out.print(f"spool:     {escape(str(spool))}", soft_wrap=True)
    out.print(f"log:       {escape(str(log))}", soft_wrap=True)
    command = f"auxtap extract DATASET --server {url} --spool {shlex.quote(str(spool))} --out STORE"
    out.print(f"next:      {escape(command)}", soft_wrap=True)
    out.print("Ctrl-C stops the server.")
    out.file.flush()
