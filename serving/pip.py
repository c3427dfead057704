"""Run an environment's own pip: its steps as progress, its failure as the requirement at fault."""

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TextIO

from auxtap.core.errors import ServerError

_UNSATISFIED = re.compile(r"No matching distribution found for (\S+)|satisfies the requirement (\S+)")
_WHEEL_FAILED = re.compile(r"Failed(?: building wheel for| to build)[ '\"]*([\w.-]+)")
_PIP_ERROR = re.compile(r"^ERROR: (.+)")
_STARTED = re.compile(r"^(?:Collecting|Requirement already satisfied:|Processing (?:\S*/)?)\s*([\w.\[\]-]+)")


class Pip:
    """The environment's own pip, its output in a log and its steps as progress."""

    def __init__(self, python: Path, log: Path, progress: Callable[[str], None]) -> None:
        self._python = python
        self._log = log
        self._progress = progress

    def install(self, arguments: Sequence[str], requirements: Sequence[str]) -> None:
        """Install; `requirements` only names what is expected.

        Raises:
            ServerError: pip fails; the requirement at fault is named.
        """
        command = [str(self._python), "-m", "pip", "install", "--progress-bar", "off", "--no-input"]
        with self._log.open("a") as log:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=pip_environment(),
            )
            try:
                lines = list(self._follow(process, log, len(requirements)))
            finally:
                # Also when interrupted: no pip goes on behind our back.
                if process.poll() is None:
                    process.terminate()
                process.wait()
        if process.returncode != 0:
            raise ServerError(
                f"pip cannot install {failed_requirement(lines)}",
                hint=f"see {self._log}; an index of your own: pip's configuration, or --torch-index for torch",
            )

    def _follow(self, process: subprocess.Popen[str], log: TextIO, n_expected: int) -> Iterable[str]:
        started: set[str] = set()
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            match = _STARTED.match(line)
            if match is not None and match[1] not in started:
                started.add(match[1])
                self._progress(f"package {len(started)} of at least {max(n_expected, len(started))}: {match[1]}")
            elif line.startswith("Installing collected packages"):
                self._progress("installing what was fetched")
            yield line.rstrip("\n")


def failed_requirement(lines: Sequence[str]) -> str:
    """Return what pip says it failed on: a requirement with its reason, or pip's last error."""
    errors = [match[1] for line in lines if (match := _PIP_ERROR.match(line))]
    for line in reversed(lines):
        unsatisfied = _UNSATISFIED.search(line)
        if unsatisfied is not None:
            return f"{unsatisfied[1] or unsatisfied[2]}: no index offers it for this Python and machine"
    for line in lines:
        failed = _WHEEL_FAILED.search(line)
        if failed is not None:
            return f"{failed[1]}: it could not be built"
    return errors[-1] if errors else (lines[-1] if lines else "anything: it says nothing")


def pip_environment() -> dict[str, str]:
    """Return our environment without what would bend another Python's imports."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "PIP_TARGET")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0"}
