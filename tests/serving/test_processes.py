"""Ports, and process groups that end whole."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from auxtap.core.errors import ServerError
from auxtap.serving.processes import StopPatience, choose_port, port_is_free, session_members, stop_session

IMPATIENT = StopPatience(interrupt_s=0.3, terminate_s=0.3, kill_s=10.0)

# Ignores INT and TERM, has a child and a grandchild that do too, and one child in a session of its own.
STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
pids = []
for leaves in (False, True):
    child = os.fork()
    if child == 0:
        if leaves:
            os.setsid()
        else:
            grandchild = os.fork()
        while True:
            time.sleep(1)
    pids.append(child)
time.sleep(0.2)
print("up", flush=True)
while True:
    time.sleep(1)
"""

OBEDIENT = """
import time
print("up", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    raise SystemExit(7)
"""


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that has nothing to do with a server."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def start(program: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def live(processes: list[psutil.Process]) -> list[int]:
    return [p.pid for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_a_used_port_is_not_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        port = listener.getsockname()[1]
        assert not port_is_free("127.0.0.1", port)
        with pytest.raises(ServerError, match=rf"127\.0\.0\.1:{port}: the port is in use by .*pid {os.getpid()}"):
            choose_port("127.0.0.1", port)
    assert port_is_free("127.0.0.1", port)
    assert choose_port("127.0.0.1", port) == port


def test_port_zero_picks_a_free_one() -> None:
    port = choose_port("127.0.0.1", 0)
    assert port > 0
    assert port_is_free("127.0.0.1", port)


def test_a_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ServerError, match="cannot listen on"):
        choose_port("192.0.2.1", 0)


def test_a_stubborn_family_leaves_no_survivor(bystander: subprocess.Popen[bytes]) -> None:
    process = start(STUBBORN)
    family = session_members(process.pid)
    assert len(family) == 4
    began = time.monotonic()
    stop_session(process.pid, IMPATIENT)
    assert live(family) == []
    assert process.wait() == -signal.SIGKILL
    assert 0.6 <= time.monotonic() - began < 8
    assert bystander.poll() is None
    stop_session(process.pid, IMPATIENT)


def test_an_obedient_process_is_only_interrupted() -> None:
    process = start(
        "import time\ntry:\n print('up', flush=True)\n time.sleep(60)\nexcept KeyboardInterrupt: raise SystemExit(7)"
    )
    stop_session(process.pid, StopPatience(interrupt_s=10))
    assert process.wait() == 7


def test_children_of_a_dead_leader_are_found(tmp_path: Path) -> None:
    program = "import os, time\nif os.fork() == 0: time.sleep(60)\nprint('up', flush=True)\nos._exit(0)"
    process = start(program)
    process.wait()
    orphans = session_members(process.pid)
    assert len(orphans) == 1
    stop_session(process.pid, IMPATIENT)
    assert live(orphans) == []
