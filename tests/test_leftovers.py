"""Killed in the middle of a test, pytest leaves nothing running of what the test has started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from auxtap.serving.profile import LaunchSpec, server_environment
from auxtap.tests.leftovers import MARK, marked_processes

CHILD = '''
import os, subprocess, sys, time
from pathlib import Path

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]

def test_that_starts_servers(tmp_path):
    """A server in a session of its own, and one whose parent has ended: neither gets a signal with pytest."""
    subprocess.Popen(SLEEP, start_new_session=True)
    orphan = f"import subprocess; subprocess.Popen({SLEEP!r}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", orphan], check=True)
    Path(os.environ["TOLD"]).write_text(os.environ["RUN_OF_AUXTAP_TESTS"])
    time.sleep(600)
'''
PATIENCE_S = 30


def wait_for(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_run_leaves_no_process_behind(tmp_path: Path) -> None:
    (tmp_path / "test_child.py").write_text(CHILD)
    told = tmp_path / "told"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "auxtap.tests.conftest", "--rootdir", str(tmp_path)]
    pytest_child = subprocess.Popen(
        [*command, str(tmp_path / "test_child.py")], env={**os.environ, "TOLD": str(told)}, stdout=subprocess.DEVNULL
    )
    wait_for(lambda: told.is_file() and told.read_text())
    token = told.read_text()
    assert token != os.environ[MARK]
    assert len(marked_processes(token)) == 2
    pytest_child.send_signal(signal.SIGKILL)
    pytest_child.wait()
    wait_for(lambda: not marked_processes(token))


def test_servers_keep_the_mark() -> None:
    spec = LaunchSpec(Path("python"), Path("tree"), "model", 1, Path("log"), Path("bytecode"), Path("spool"), cpu=True)
    assert server_environment(spec, os.environ)[MARK] == os.environ[MARK]
