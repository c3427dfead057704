"""Being asked to end by the system."""

import os
import signal
import subprocess
import sys

import pytest

from auxtap.commands.terminations import terminations_interrupt
from auxtap.core.errors import ExitCode

# The command line, its commands replaced by one that waits.
WAITING = """
import sys
import time
import typer
from auxtap import cli
cli.app = typer.Typer()
@cli.app.command()
def wait() -> None:
    try:
        print("waiting", flush=True)
        time.sleep(60)
    finally:
        print("tidied", flush=True)
sys.argv = ["auxtap"]
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_being_asked_to_end_is_as_good_as_an_interrupt(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), terminations_interrupt():
        os.kill(os.getpid(), number)
        signal.pause()
    assert signal.getsignal(number) == before


def test_who_ignores_hang_ups_goes_on() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminations_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_hang_up_does_not_break_off_the_tidying() -> None:
    before = signal.getsignal(signal.SIGHUP)
    told = []
    with pytest.raises(KeyboardInterrupt), terminations_interrupt():
        try:
            os.kill(os.getpid(), signal.SIGHUP)
            signal.pause()
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            told.append("tidied")
    assert told == ["tidied"] and signal.getsignal(signal.SIGHUP) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_command_tidies_up_and_says_that_it_was_interrupted(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(number)
    told, said = process.communicate(timeout=30)
    assert (process.returncode, told, said) == (ExitCode.INTERRUPTED, "tidied\n", "interrupted\n")
