"""The two consoles: results on stdout, progress and errors on stderr; plain when they are no terminals."""

import functools
import json
import os
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape

from auxtap.core.errors import AuxtapError

# Wide enough for the tables when a pipe has no width of its own.
PIPED_WIDTH = 120


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    piped = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(stderr=stderr, width=PIPED_WIDTH if piped else None, highlight=False)


@functools.cache
def out() -> Console:
    """Return the console for results."""
    return _console(stderr=False)


@functools.cache
def err() -> Console:
    """Return the console for progress and errors."""
    return _console(stderr=True)


def say(text: str) -> None:
    """Report one line of progress."""
    err().print(escape(text), style="dim", soft_wrap=True)


def emit_json(value: Any) -> None:
    """Write a result as JSON to stdout, untouched by markup and width."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_error(error: AuxtapError) -> None:
    """Show what failed and the next step."""
    err().print(f"[bold red]error:[/] {escape(error.message)}", soft_wrap=True)
    if error.hint:
        err().print(f"[bold]hint:[/] {escape(error.hint)}", soft_wrap=True)
