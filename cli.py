"""Assemble the command line and turn what a command raises into one message and an exit code."""

import contextlib
import os
import sys
import traceback
from typing import Annotated, Any

import typer

from auxtap.commands.context import cache_layout
from auxtap.commands.menu import MenuGroup
from auxtap.commands.terminations import terminations_interrupt
from auxtap.core.errors import AuxtapError, ExitCode, UsageError
from auxtap.core.version import __version__

# Typer raises the exceptions of the click that it brings along; this is their common class.
_CommandLineError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


app = typer.Typer(
    name="auxtap",
    cls=MenuGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"auxtap {__version__}")
        raise typer.Exit


@app.callback()
def auxtap(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Trace, patch, serve and extract the auxiliary hidden states of SGLang.

    SOURCE is a git checkout (PATH or PATH@REF), an installed sglang folder, or a release such as pypi:0.5.9.
    """


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; every error becomes one message on stderr."""
    try:
        result = app(args=arguments, prog_name="auxtap", standalone_mode=False)
        if result == ExitCode.INTERRUPTED:
            # Typer makes an exit code of a KeyboardInterrupt, and says nothing.
            typer.echo("interrupted", err=True)
        return int(result) if isinstance(result, int) else ExitCode.DONE
    except AuxtapError as error:
        return _report(error)
    except _CommandLineError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "auxtap"
        return _report(UsageError(error.format_message(), hint=f"run {command} --help"))
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has gone (`| head`); python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except Exception:
        return _report_bug()


def _report(error: AuxtapError) -> int:
    from auxtap.commands.views.console import print_error

    print_error(error)
    return error.exit_code


def _report_bug() -> int:
    log = cache_layout().logs / "last-error.log"
    where = f"the details are in {log}"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"auxtap {__version__}\n{traceback.format_exc()}")
    except OSError as error:
        where = f"and the log {log} could not be written ({error.strerror}):\n{traceback.format_exc()}"
    with contextlib.suppress(Exception):
        kind = sys.exc_info()[0]
        name = kind.__name__ if kind else "unknown"
        bug = AuxtapError(
            f"auxtap itself failed ({name}); {where}", hint="this is a bug: please report it with that text"
        )
        _report(bug)
    return ExitCode.BUG


def main() -> None:
    """Run the command line and leave with its exit code."""
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code: int = ExitCode.INTERRUPTED
    # A signal may still come when the command has ended.
    with contextlib.suppress(KeyboardInterrupt), terminations_interrupt():
        code = run()
    sys.exit(code)


if __name__ == "__main__":
    main()
