"""Servers that hang, fail or cannot be had: a case ends with its reason and the last lines of its log."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auxtap.core.errors import ServerError
from auxtap.serving.processes import session_members
from auxtap.serving.profile import LOOPBACK, LaunchSpec
from auxtap.verification.engine import engine_run
from auxtap.verification.engine.engine_cases import EngineCase
from auxtap.verification.engine.engine_run import run_case
from auxtap.verification.engine.engine_settings import SETTINGS, Setting
from auxtap.verification.engine.fork_server import ForkedServer, ForkServer
from auxtap.verification.engine.tiny_models import TinyModel

pytestmark = pytest.mark.engine
INJECT = Path(__file__).with_name("inject_fault_script.py")


class Faulty:
    """A fork server whose servers run the fault script first."""

    def __init__(self, fork_server: ForkServer) -> None:
        self._fork_server = fork_server
        self.served: list[ForkedServer] = []

    def serve(self, spec: LaunchSpec) -> ForkedServer:
        self.served.append(self._fork_server.serve(spec, first=INJECT))
        return self.served[-1]


@pytest.mark.parametrize(
    ("fault", "problem", "logged"),
    [
        ("forward_raises", "RuntimeError: injected: the forward failed", "injected: the forward failed"),
        ("forward_hangs", "is stuck: no sign of life for", "injected: the forward hangs"),
        ("memory_runs_out", "can't allocate memory", "can't allocate memory"),
        ("answers_500", "500", "injected: the request failed"),
    ],
)
def test_a_server_that_fails_or_hangs_is_a_problem_with_its_log(
    fault: str,
    problem: str,
    logged: str,
    fork_server: ForkServer,
    template: LaunchSpec,
    tiny: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_run, "REQUEST_TIMEOUT_S", 5.0)
    monkeypatch.setattr(engine_run, "STALL_TIMEOUT_S", 5.0)
    monkeypatch.setitem(SETTINGS, "two", Setting("two", "two prompts", lengths=(5, 9), parts_timeout_s=2.0))
    spec = replace(template, log=tmp_path / "import.log", extra_environment={"INJECTED_FAULT": fault})
    faulty: Any = Faulty(fork_server)
    run = run_case(
        EngineCase("llama", "two"), TinyModel("llama", tiny["llama"]), faulty, spec, tmp_path, lambda _: None
    )
    assert run.problem is not None
    assert problem in run.problem
    assert "the server's log ends: " in run.problem
    assert str(tmp_path / "verify-0.5.9-llama-two.log") in run.problem
    assert logged in (tmp_path / "verify-0.5.9-llama-two.log").read_text()
    assert session_members(faulty.served[0].pid) == []


def test_a_port_that_is_taken_is_said_before_anything_starts(
    fork_server: ForkServer, make_spec: Callable[..., LaunchSpec]
) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        spec = make_spec(port=taken.getsockname()[1])
        with pytest.raises(ServerError, match=f":{spec.port}: the port is in use"), fork_server.serve(spec):
            pass
    assert not spec.log.exists()
