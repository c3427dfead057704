"""A server's life, with a real process in SGLang's place."""

import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from auxtap.core.errors import ServerError, UsageError
from auxtap.serving import server as server_module
from auxtap.serving.processes import StopPatience, session_members, stop_session
from auxtap.serving.profile import LaunchSpec
from auxtap.serving.server import ServerProcess

MakeSpec = Callable[[str], LaunchSpec]
READY = "arm(0, 2)\narm(1, 2)\nserve()\n"


def test_a_server_is_ready_when_it_answers_and_every_writer_is_armed(make_spec: MakeSpec) -> None:
    spec = make_spec("print('Load weight begin. x', flush=True)\n" + READY)
    steps: list[str] = []
    with ServerProcess(spec) as server:
        assert 0 < server.wait_ready(timeout_s=30, progress=steps.append) < 30
        pid = server.pid
        assert server.poll() is None
    assert steps == ["loading weights", "the server is ready"]
    assert session_members(pid) == []
    server.stop()
    assert spec.spool is not None and spec.tree is not None
    assert spec.spool.stat().st_mode & 0o777 == 0o700
    assert not list(spec.tree.rglob("__pycache__"))


def test_a_server_without_a_tap_needs_no_descriptor(make_spec: MakeSpec) -> None:
    with ServerProcess(replace(make_spec("serve()\n"), spool=None)) as server:
        server.wait_ready(timeout_s=30)


def test_a_server_that_dies_tells_why(make_spec: MakeSpec) -> None:
    spec = make_spec("raise ValueError('no such model: tiny')\n")
    with ServerProcess(spec) as server, pytest.raises(ServerError) as caught:
        server.wait_ready(timeout_s=30)
    assert caught.value.message == "the server ended with status 1: ValueError: no such model: tiny"
    assert str(spec.log) in str(caught.value.hint)


def test_a_server_that_is_killed_tells_by_what(make_spec: MakeSpec) -> None:
    spec = make_spec("print('working', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with ServerProcess(spec) as server, pytest.raises(ServerError, match=r"killed by SIGKILL \(out of memory\?\)"):
        server.wait_ready(timeout_s=30)


def test_a_refusal_is_enough_even_when_the_server_hangs(make_spec: MakeSpec) -> None:
    spec = make_spec("print('RuntimeError: auxtap: refused: layer 99', flush=True)\ntime.sleep(60)\n")
    with ServerProcess(spec) as server, pytest.raises(ServerError, match=r"^auxtap: refused: layer 99$"):
        server.wait_ready(timeout_s=30)


def test_an_unpatched_tree_is_noticed(make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "ARMED_GRACE_S", 0.3)
    with (
        ServerProcess(make_spec("serve()\n")) as server,
        pytest.raises(ServerError, match="up but its tap is not armed"),
    ):
        server.wait_ready(timeout_s=30)


def test_a_stage_that_is_not_armed_is_noticed(make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "ARMED_GRACE_S", 0.3)
    with (
        ServerProcess(make_spec("arm(0, 2)\nserve()\n")) as server,
        pytest.raises(ServerError, match="not armed"),
    ):
        server.wait_ready(timeout_s=30)


@pytest.mark.slow
def test_waiting_has_a_deadline(make_spec: MakeSpec) -> None:
    spec = make_spec("arm()\nprint('last words', flush=True)\nserve(healthy=False)\n")
    with ServerProcess(spec) as server:
        give_up_at = time.monotonic() + 30
        while "last words" not in spec.log.read_text() and time.monotonic() < give_up_at:
            time.sleep(0.05)
        with pytest.raises(ServerError, match=r"not ready after 1 s; its log ends: The"):
            server.wait_ready(timeout_s=1)
    assert session_members(server.pid) == []


def test_an_earlier_log_is_not_taken_for_this_servers(make_spec: MakeSpec) -> None:
    spec = make_spec(READY)
    spec.log.parent.mkdir()
    spec.log.write_text("auxtap: refused: yesterday\n")
    with ServerProcess(spec) as server:
        server.wait_ready(timeout_s=30)


def test_a_port_in_use_is_noticed_before_the_start(make_spec: MakeSpec) -> None:
    spec = make_spec(READY)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", spec.port))
        listener.listen(1)
        with pytest.raises(ServerError, match="the port is in use"), ServerProcess(spec):
            pass
    assert not spec.log.exists()


def test_a_refused_argument_starts_nothing(make_spec: MakeSpec) -> None:
    spec = replace(make_spec(READY), extra_arguments=("--enable-two-batch-overlap",))
    with pytest.raises(UsageError, match="--enable-two-batch-overlap"), ServerProcess(spec):
        pass
    assert not spec.log.exists()


def test_a_python_that_is_not_there(make_spec: MakeSpec) -> None:
    with (
        pytest.raises(ServerError, match=r"cannot start /no/python"),
        ServerProcess(replace(make_spec(READY), python=Path("/no/python"))),
    ):
        pass


def test_a_server_that_ends_by_itself_in_the_middle(make_spec: MakeSpec) -> None:
    fail = "def fail(*args):\n    print('MemoryError: too big', flush=True)\n    os._exit(1)\n"
    spec = make_spec(fail + "signal.signal(signal.SIGALRM, fail)\n" + READY)
    with ServerProcess(spec) as server:
        server.wait_ready(timeout_s=30)
        psutil.Process(server.pid).send_signal(signal.SIGALRM)
        error = server.wait_ended()
    assert error.message == "the server ended with status 1: MemoryError: too big"


def test_an_interrupt_while_stopping_leaves_no_survivor(make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
    spec = make_spec(deaf + READY)
    server = ServerProcess(spec, StopPatience(interrupt_s=30, terminate_s=30, kill_s=10))
    server.start()
    server.wait_ready(timeout_s=30)
    real = stop_session
    calls: list[StopPatience] = []

    def interrupted_once(leader: int, patience: StopPatience) -> None:
        calls.append(patience)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(leader, patience)

    monkeypatch.setattr(server_module, "stop_session", interrupted_once)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        server.stop()
    assert time.monotonic() - began < 10
    assert session_members(server.pid) == []
