"""No process outlives the tests: a watcher beside pytest ends what is left, also when pytest is killed.

Whatever a test starts has the variable `MARK` in its environment, and so has all that it starts in turn. The watcher
holds one end of a pipe whose other end the kernel closes with pytest, however that ends.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

# Not AUXTAP_...: a server gets none of those that it was not meant to have.
MARK = "RUN_OF_AUXTAP_TESTS"
# What is being killed may be forking: it is over when nothing was found twice.
QUIET_ROUNDS, ROUND_S = 2, 0.1


def watch_this_run() -> None:
    """Start the watcher of this process, and mark all that this process starts from now on."""
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    token = secrets.token_hex(16)
    reading, writing = os.pipe()
    # Python's descriptors are not inherited: this process alone holds the end that is written to.
    command = [sys.executable, "-S", __file__, token]
    subprocess.Popen(command, stdin=reading, env=environment, start_new_session=True)
    os.close(reading)
    os.set_inheritable(writing, False)
    os.environ[MARK] = token


def marked_processes(token: str) -> list[int]:
    """Return the processes that were started with a mark."""
    wanted = f"{MARK}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # It may be gone, or somebody else's.
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def kill_marked(token: str) -> None:
    """Kill every process with a mark, those included that they start meanwhile."""
    quiet = 0
    while quiet < QUIET_ROUNDS:
        found = marked_processes(token)
        quiet = 0 if found else quiet + 1
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(ROUND_S)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    kill_marked(sys.argv[1])
