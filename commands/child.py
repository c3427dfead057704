"""Run auxtap's own commands as a person would: one process each, its result read from `--json`."""

import contextlib
import json
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from auxtap.core.errors import AuxtapError

# The first line of a command is python's way of finding the same auxtap that runs here.
_SELF = (sys.executable, "-m", "auxtap.cli")
STOP_TIMEOUT_S = 60.0
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, its result, and what it said on stderr."""

    code: int
    result: Any
    said: str


def shown(arguments: Sequence[str]) -> str:
    """Return the command line as a person types it."""
    return shlex.join(["auxtap", *arguments])


def run_command(arguments: Sequence[str], progress: Progress) -> Ended:
    """Run `auxtap ARGUMENTS --json` to its end, its progress going to `progress` line by line."""
    command = [*_SELF, *_with_json(arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        said: list[str] = []
        reader = threading.Thread(target=_follow, args=(process, said, progress), daemon=True)
        reader.start()
        assert process.stdout is not None
        printed = process.stdout.read()
        process.wait()
        reader.join()
    result = None
    with contextlib.suppress(json.JSONDecodeError):
        result = json.loads(printed)
    return Ended(process.returncode, result, "".join(said))


def result_of(arguments: Sequence[str], progress: Progress) -> Mapping[str, Any]:
    """Run a command that must succeed and return its result.

    Raises:
        AuxtapError: it ended with another exit code than 0; the error is the command's own.
    """
    ended = run_command(arguments, progress)
    if ended.code != 0 or not isinstance(ended.result, dict):
        raise failure(arguments, ended)
    return ended.result


def failure(arguments: Sequence[str], ended: Ended) -> AuxtapError:
    """Return the error of a command that failed, with its own words and exit code."""
    lines = [line for line in ended.said.splitlines() if line.strip()]
    said = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
    hint = next((line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")), None)
    error = AuxtapError(
        f"`{shown(arguments)}` ended with exit code {ended.code}: {said or 'it gave no reason'}", hint=hint
    )
    error.exit_code = ended.code  # type: ignore[assignment]
    return error


@contextlib.contextmanager
def running_command(arguments: Sequence[str], progress: Progress) -> Iterator[Mapping[str, Any]]:
    """Run a command that goes on until it is ended, such as `serve`; yields its first line of JSON.

    Raises:
        AuxtapError: it ended before it said that it was ready.
    """
    command = [*_SELF, *_with_json(arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    said: list[str] = []
    reader = threading.Thread(target=_follow, args=(process, said, progress), daemon=True)
    reader.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            process.wait()
            reader.join()
            raise failure(arguments, Ended(process.returncode, None, "".join(said)))
        yield json.loads(line)
    finally:
        _end(process)
        reader.join()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _with_json(arguments: Sequence[str]) -> list[str]:
    """Put `--json` before a `--`, behind which arguments are another program's."""
    position = list(arguments).index("--") if "--" in arguments else len(arguments)
    return [*arguments[:position], "--json", *arguments[position:]]


def _follow(process: "subprocess.Popen[str]", said: list[str], progress: Progress) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if line.strip():
            progress(line.strip())


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        # Not SIGINT: what a script runs in the background inherits that one as ignored, and hands it on.
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # The command stops its own server by process group; only when it hangs is it killed itself.
            process.kill()
            process.wait()
