"""Ask the agent on a node: requests go in as JSON on stdin, so that no path ever meets a shell."""

import contextlib
import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from auxtap.core.errors import AuxtapError, ExitCode, ServerError
from auxtap.node.agent_file import build_agent, launcher_text
from auxtap.node.node_profile import NodeProfile
from auxtap.node.ssh import ConnectionLostError, SshConnection, UnreachableError

MARK = b"\x1eauxtap "
CALL_TIMEOUT_S = 120.0
RECONNECT_S = 600.0
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)

Progress = Callable[[str], None]


class RemoteAgent:
    """The agent of one node; calls are repeated when the connection is lost, so every command is safe to repeat."""

    def __init__(self, profile: NodeProfile, connection: SshConnection, progress: Progress) -> None:
        """Speak over `connection`; nothing is sent yet."""
        self.profile = profile
        self.connection = connection
        self._progress = progress
        self._answered_at: float | None = None

    def call(
        self,
        command: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        payload: bytes = b"",
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Any:
        """Run one command of the agent and return its result.

        Raises:
            ServerError: the node cannot be reached, or has no usable Python.
            AuxtapError: what the agent itself answered, with its exit code.
        """
        return self.again(lambda: self._call(command, arguments or {}, payload, timeout_s))

    def again(self, action: Callable[[], Any]) -> Any:
        """Do something, again while the connection is lost in the middle of it.

        Raises:
            ServerError: the node could not be reached again for ten minutes.
        """
        lost_at: float | None = None
        attempt = 0
        while True:
            try:
                return action()
            except (ConnectionLostError, UnreachableError) as error:
                now = time.monotonic()
                if isinstance(error, UnreachableError) and self._answered_at is None:
                    raise
                if lost_at is None or (self._answered_at or 0.0) > lost_at:
                    lost_at, attempt = now, 0
                    self._progress(f"the connection to {self.profile.ssh.host} was lost; connecting again")
                if now - lost_at > RECONNECT_S:
                    raise ServerError(
                        f"{self.profile.ssh.host} could not be reached again for {RECONNECT_S:.0f} s",
                        hint="what runs there goes on; the same command picks it up",
                    ) from None
                time.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
                attempt += 1

    def events(self, command: str, arguments: Mapping[str, Any]) -> Iterator[Any]:
        """Run a command that answers many times, and give each answer as it comes.

        Raises:
            ConnectionLostError: the connection ended; begin again where it stopped.
            AuxtapError: what the agent itself answered.
        """
        self.call("hello")
        with self.connection.stream(self._command(), stdin=self._request(command, arguments)) as lines:
            for line in lines:
                answer = _answer(line)
                if answer is not None:
                    self._answered_at = time.monotonic()
                    yield _result(answer)

    @contextlib.contextmanager
    def pull(
        self, command: str, arguments: Mapping[str, Any], count: int
    ) -> Iterator[Iterator[tuple[Mapping[str, Any], BinaryIO]]]:
        """Run a command that announces `count` files; give each announcement and where its bytes are to be read.

        Raises (from the iterator):
            ConnectionLostError: the connection ended; begin again where it stopped.
            AuxtapError: what the agent itself answered.
        """
        self.call("hello")
        with self.connection.pipe(self._command(), stdin=self._request(command, arguments)) as source:
            yield self._announced(source, count)

    def _announced(self, source: BinaryIO, count: int) -> Iterator[tuple[Mapping[str, Any], BinaryIO]]:
        for _ in range(count):
            answer = None
            while answer is None:
                line = source.readline()
                if not line:
                    raise ConnectionLostError("it ended between two files")
                answer = _answer(line)
            self._answered_at = time.monotonic()
            yield _result(answer), source

    def _call(self, command: str, arguments: Mapping[str, Any], payload: bytes, timeout_s: float) -> Any:
        answer = self._ask(self._request(command, arguments, payload), timeout_s)
        if "missing" in answer:
            agent = build_agent()
            self._progress(f"sending the agent ({len(agent.data):,} bytes)")
            install = self._request("install", {}, agent.data)
            _result(self._ask(install, timeout_s))
            answer = self._ask(self._request(command, arguments, payload), timeout_s)
        return _result(answer)

    def _ask(self, stdin: bytes, timeout_s: float) -> dict[str, Any]:
        finished = self.connection.run(self._command(), stdin=stdin, timeout_s=timeout_s)
        for line in reversed(finished.stdout.split(b"\n")):
            answer = _answer(line)
            if answer is not None:
                self._answered_at = time.monotonic()
                return answer
        said = [line for line in finished.stderr.splitlines() if line.strip()]
        raise ServerError(
            f"{self.profile.python} on {self.profile.ssh.host} ended with status {finished.status}: "
            f"{said[-1][:300] if said else 'it said nothing'}",
            hint="node.python in the profile must be Python 3.10 or newer on the node",
        )

    def _command(self) -> str:
        return f"exec {remote_quote(self.profile.python)} -I -c {shlex.quote(launcher_text())}"

    def _request(self, command: str, arguments: Mapping[str, Any], payload: bytes = b"") -> bytes:
        request = {
            "root": self.profile.root,
            "agent": build_agent().digest,
            "launcher": launcher_text(),
            "command": command,
            "arguments": dict(arguments),
            "n_bytes": len(payload),
        }
        return json.dumps(request).encode() + b"\n" + payload


def remote_quote(path: str) -> str:
    """Quote a path for the node's shell; a leading `~/` stays the home of the node's user."""
    if path.startswith("~/"):
        return '"$HOME"/' + shlex.quote(path[2:])
    return shlex.quote(path)


def _answer(line: bytes) -> dict[str, Any] | None:
    _, mark, text = line.partition(MARK)
    if not mark:
        return None
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _result(answer: Mapping[str, Any]) -> Any:
    if "result" in answer:
        return answer["result"]
    error = AuxtapError(str(answer.get("error", "the agent gave no answer")), hint=answer.get("hint"))
    error.exit_code = ExitCode(answer.get("code", ExitCode.SERVER))
    raise error
