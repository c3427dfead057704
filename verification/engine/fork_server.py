"""Many real servers from one import of SGLang."""

import contextlib
import json
import os
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from auxtap.core.errors import ServerError
from auxtap.serving.processes import DEFAULT_PATIENCE, StopPatience, stop_session
from auxtap.serving.profile import LaunchSpec, cpu_binding, server_arguments, server_environment, tap_environment
from auxtap.serving.server import RunningProcess, WatchedServer
from auxtap.serving.server_log import failure_reason
from auxtap.verification.engine.engine_scripts import engine_script

SCRIPT = "fork_servers.py"
IMPORT_TIMEOUT_S = 600.0
ANSWER_TIMEOUT_S = 60.0


class ForkServer:
    """A process that has imported SGLang from one patched tree and forks servers; use it in a `with` block.

    `template` gives what all cases share: Python, tree, bytecode cache; its spool only switches the tap on.

    Raises (on entering):
        ServerError: SGLang cannot be imported (the log's reason).
    """

    def __init__(self, template: LaunchSpec) -> None:
        self._template = template
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        spec = self._template
        assert spec.spool is not None, "the tap is imported only when it is switched on"
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        spec.bytecode.mkdir(parents=True, exist_ok=True)
        with spec.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(spec.python), str(engine_script(SCRIPT))],
                env=server_environment(spec, os.environ),
                cwd=spec.log.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            self._read_answer(IMPORT_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process id of the forking process.

        Raises:
            ServerError: it is not running.
        """
        if self._process is None:
            raise ServerError("the process that forks servers is not running")
        return self._process.pid

    def serve(
        self, spec: LaunchSpec, patience: StopPatience = DEFAULT_PATIENCE, first: Path | None = None
    ) -> "ForkedServer":
        """Return a server of `spec`, not yet started; Python, tree and bytecode cache are those of the template.

        `first` is a Python file that the server runs before it begins.
        """
        return ForkedServer(self, spec, patience, first)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer.

        Raises:
            ServerError: the forking process is gone or does not answer.
        """
        process = self._process
        if process is None or process.stdin is None:
            raise ServerError("the process that forks servers is not running")
        with self._lock:
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            except OSError:
                raise self._gone() from None
            return self._read_answer(ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """End the process and with it every server it forked."""
        process, self._process = self._process, None
        if process is None:
            return
        stop_session(process.pid, StopPatience(0.0, 0.0))
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                # What was not flushed has no reader any more.
                with contextlib.suppress(OSError):
                    stream.close()

    def _read_answer(self, timeout_s: float) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdout is not None
        # A reader that is stuck is freed by the process's death.
        watchdog = threading.Timer(timeout_s, process.kill)
        watchdog.start()
        try:
            line = process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise self._gone()
        record: dict[str, Any] = json.loads(line)
        return record

    def _gone(self) -> ServerError:
        log = self._template.log
        reason = failure_reason(log.read_text(errors="replace").splitlines())
        return ServerError(f"the process that forks servers ended: {reason}", hint=f"read its log {log}")


class ForkedServer(WatchedServer):
    """A server forked from a process that has imported SGLang already."""

    def __init__(self, fork_server: ForkServer, spec: LaunchSpec, patience: StopPatience, first: Path | None) -> None:
        super().__init__(spec, patience)
        self._fork_server = fork_server
        self._first = first

    def launch(self) -> RunningProcess:
        """Fork the server."""
        spec = self.spec
        environment = {**cpu_binding(spec.extra_arguments, spec.tree), **spec.extra_environment}
        if spec.spool is not None:
            environment.update(tap_environment(spec, spec.spool))
        request = {
            "op": "start",
            "argv": list(server_arguments(spec)),
            "env": environment,
            "log": str(spec.log),
            "first": None if self._first is None else str(self._first),
        }
        return _Fork(self._fork_server, int(self._fork_server.ask(request)["pid"]))


class _Fork:
    """A child of the forking process, which alone can wait for it."""

    def __init__(self, fork_server: ForkServer, pid: int) -> None:
        self._fork_server = fork_server
        self.pid = pid

    def poll(self) -> int | None:
        status: int | None = self._fork_server.ask({"op": "poll", "pid": self.pid})["status"]
        return status
