"""The system's OpenSSH, and nothing else: one master connection, deadlines, no prompts, no passwords."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from auxtap.core.errors import ServerError
from auxtap.node.node_profile import SshSettings

POLL_S = 0.05
STOP_S = 5.0
SSH_FAILED = 255
# A dead connection is noticed after three unanswered questions of these seconds.
ALIVE_INTERVAL_S = 5
# Prompts are errors: a session without a terminal, with nobody to ask, never hangs on one.
_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "UpdateHostKeys=no",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "RequestTTY=no",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ExitOnForwardFailure=yes",
    "LogLevel=ERROR",
    "EscapeChar=none",
    "ControlMaster=no",
    f"ServerAliveInterval={ALIVE_INTERVAL_S}",
    "ServerAliveCountMax=3",
)


class UnreachableError(ServerError):
    """A connection did not come about; later it may."""


class ConnectionLostError(Exception):
    """The connection ended in the middle; what runs on the node goes on."""


@dataclass(frozen=True)
class Finished:
    """A command on the node that has ended."""

    status: int
    stdout: bytes
    stderr: str


class SshConnection:
    """One node's connection, opened when it is first needed and again after it was lost; use it in a `with` block."""

    def __init__(self, settings: SshSettings) -> None:
        """Prepare; nothing is contacted yet."""
        self.settings = settings
        self._folder: Path | None = None
        self._master: subprocess.Popen[bytes] | None = None
        self._children: set[subprocess.Popen[bytes]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection and all that runs over it here; what was started on the node goes on."""
        for child in list(self._children):
            self._forget(child)
        self._drop_master()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def run(self, command: str, *, stdin: bytes = b"", timeout_s: float) -> Finished:
        """Run one command line of the node's shell to its end.

        Raises:
            ServerError: the node cannot be reached, does not let us in, or `timeout_s` is over.
            ConnectionLostError: the connection ended before the command did.
        """
        self.ensure()
        process = self._start(command)
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise ServerError(
                f"{self.settings.host} did not answer within {timeout_s:.0f} s",
                hint="is the node overloaded, or a disk of it stuck? the command may still run there",
            ) from None
        finally:
            self._forget(process)
        said = stderr.decode(errors="replace")
        if process.returncode == SSH_FAILED:
            raise self._failure(said)
        return Finished(process.returncode, stdout, said)

    @contextlib.contextmanager
    def stream(self, command: str, *, stdin: bytes = b"") -> Iterator[Iterator[bytes]]:
        """Run one command and give its output line by line, each as soon as it is there.

        Raises (from the lines):
            ConnectionLostError: the connection ended, or the command failed.
        """
        self.ensure()
        process = self._start(command)
        try:
            feeder = threading.Thread(target=_feed, args=(process, stdin), daemon=True)
            feeder.start()
            yield self._lines(process)
        finally:
            self._forget(process)

    @contextlib.contextmanager
    def pipe(self, command: str, *, stdin: bytes = b"") -> Iterator[BinaryIO]:
        """Run one command and give its output as bytes; they end early when the connection does."""
        self.ensure()
        process = self._start(command)
        try:
            feeder = threading.Thread(target=_feed, args=(process, stdin), daemon=True)
            feeder.start()
            assert process.stdout is not None
            yield cast(BinaryIO, process.stdout)
        finally:
            self._forget(process)

    def _lines(self, process: "subprocess.Popen[bytes]") -> Iterator[bytes]:
        assert process.stdout is not None
        assert process.stderr is not None
        yield from process.stdout
        said = process.stderr.read().decode(errors="replace")
        if process.wait() != 0:
            raise ConnectionLostError(_last_line(said) or f"it ended with status {process.returncode}")

    @contextlib.contextmanager
    def forward(self, local_port: int, remote_port: int) -> Iterator[None]:
        """Forward a loopback port of this machine to a loopback port of the node, for the length of the block.

        Raises:
            ServerError: the local port is taken, or the node refuses forwarding.
        """
        self.ensure()
        ports = f"127.0.0.1:{local_port}:127.0.0.1:{remote_port}"
        added = self._control("forward", "-L", ports)
        if added.returncode != 0:
            raise ServerError(
                f"cannot forward 127.0.0.1:{local_port} to {self.settings.host}: {_last_line(added.stderr)}",
                hint="give another --port; sshd_config's AllowTcpForwarding must be on",
            )
        try:
            yield
        finally:
            if self.is_up():
                self._control("cancel", "-L", ports)

    def is_up(self) -> bool:
        """Tell whether the master connection stands."""
        return self._master is not None and self._master.poll() is None

    def ensure(self) -> None:
        """Open the master connection when there is none.

        Raises:
            ServerError: the node cannot be reached or does not let us in; says which.
        """
        if self.is_up():
            return
        self._drop_master()
        if shutil.which("ssh") is None:
            raise ServerError("there is no ssh on this machine", hint="install OpenSSH's client (openssh-client)")
        if self._folder is None:
            # Short, for a socket's path has 104 characters at most.
            self._folder = Path(tempfile.mkdtemp(prefix="auxtap-ssh-", dir=_short_folder()))
        self._socket.unlink(missing_ok=True)
        deadline = time.monotonic() + self.settings.connect_timeout_s + 10.0
        errors = self._folder / "errors"
        with errors.open("wb") as sink:
            # It lives as long as its stdin: when this process is killed, the pipe closes and the connection ends.
            command = [*self._ssh(), "-M", "-T", "-o", "ControlPersist=no", *self._clear(), "--", self.settings.host]
            self._master = subprocess.Popen(
                [*command, "exec cat"],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=sink,
                start_new_session=True, env=_environment(),
            )  # fmt: skip
        while not self._socket.exists() or self._control("check").returncode != 0:
            said = errors.read_text(errors="replace")
            if self._master.poll() is not None:
                self._drop_master()
                raise refusal(self.settings, said)
            if time.monotonic() > deadline:
                self._drop_master()
                raise refusal(self.settings, said or "Connection timed out")
            time.sleep(POLL_S)

    def _drop_master(self) -> None:
        if self._master is not None:
            _end(self._master)
            _close_streams(self._master)
            self._master = None

    @property
    def _socket(self) -> Path:
        assert self._folder is not None
        return self._folder / "m"

    def _ssh(self) -> list[str]:
        config = ["-F", str(self.settings.config)] if self.settings.config is not None else []
        options = [*_OPTIONS, f"ConnectTimeout={max(1, round(self.settings.connect_timeout_s))}"]
        return ["ssh", *config, "-S", str(self._socket), *(part for each in options for part in ("-o", each))]

    @staticmethod
    def _clear() -> list[str]:
        return ["-o", "ClearAllForwardings=yes"]

    def _control(self, action: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [*self._ssh(), "-O", action, *arguments, "--", self.settings.host]
        try:
            return subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10.0, env=_environment()
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, SSH_FAILED, "", "the master connection does not answer")

    def _start(self, command: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [*self._ssh(), *self._clear(), "-T", "--", self.settings.host, command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, env=_environment(),
        )  # fmt: skip
        self._children.add(process)
        return process

    def _forget(self, process: "subprocess.Popen[bytes]") -> None:
        _end(process)
        self._children.discard(process)
        _close_streams(process)

    def _failure(self, said: str) -> Exception:
        if _find_refusal(said) is not None:
            return refusal(self.settings, said)
        return ConnectionLostError(_last_line(said) or "the connection was closed")


@dataclass(frozen=True)
class _Refusal:
    """What ssh says when it cannot connect, and what that means; `lasting` when trying again would not help."""

    pattern: str
    reason: str
    hint: str
    lasting: bool = False


_REFUSALS = (
    _Refusal(
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for .* has changed",
        "its host key is not the one that is known",
        "is it another machine now? compare the fingerprint with its owner, then ssh-keygen -R HOST",
        lasting=True,
    ),
    _Refusal(
        r"Host key verification failed|No .* host key is known",
        "its host key is not known here",
        "connect once by hand (ssh HOST) and compare the fingerprint",
        lasting=True,
    ),
    _Refusal(
        r"Permission denied \([^)]*(?:password|keyboard-interactive)",
        "it refuses our keys and would ask for a password",
        "auxtap types no passwords: put your public key on the node (ssh-copy-id HOST), or load it (ssh-add)",
        lasting=True,
    ),
    _Refusal(
        r"Permission denied",
        "it refuses our keys",
        "is the right key loaded (ssh-add -l)? does ~/.ssh/config name the right User and IdentityFile?",
        lasting=True,
    ),
    _Refusal(
        r"Too many authentication failures",
        "it refuses our keys",
        "name one IdentityFile with IdentitiesOnly yes",
        lasting=True,
    ),
    _Refusal(r"Could not resolve hostname", "there is no such host", "is it an alias of another ~/.ssh/config?"),
    _Refusal(
        r"Bad configuration option|Bad owner or permissions|Can't open user config",
        "ssh's configuration is not usable",
        "try: ssh HOST true",
    ),
    _Refusal(r"[Cc]onnection refused", "nothing listens there", "is the node up, and sshd on that port?"),
    _Refusal(r"timed out", "it does not answer", "is the node up? a VPN or jump host may be missing"),
    _Refusal(
        r"[Nn]o route to host|[Nn]etwork is unreachable", "there is no way to it", "a VPN or jump host may be missing"
    ),
    _Refusal(
        r"administratively prohibited|stdio forwarding failed|UNKNOWN port 65535",
        "its jump host does not let us through",
        "try: ssh -v HOST true",
    ),
)


def refusal(settings: SshSettings, said: str) -> ServerError:
    """Return the error for what ssh said when it could not connect."""
    found = _find_refusal(said)
    if found is None:
        return UnreachableError(
            f"cannot connect to {settings.host}: {_last_line(said) or 'ssh gave no reason'}",
            hint=f"try: ssh {settings.host} true",
        )
    kind = ServerError if found.lasting else UnreachableError
    return kind(
        f"cannot connect to {settings.host}: {found.reason} ({_last_line(said)})",
        hint=found.hint.replace("HOST", settings.host),
    )


def _find_refusal(said: str) -> _Refusal | None:
    return next((each for each in _REFUSALS if re.search(each.pattern, said)), None)


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return "".join(character for character in lines[-1][:300] if character.isprintable()) if lines else ""


def _environment() -> dict[str, str]:
    """Return our environment without what would let ssh, or a jump's ssh, open a window to ask for a password."""
    dropped = ("DISPLAY", "WAYLAND_DISPLAY", "SSH_ASKPASS")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"}


def _short_folder() -> str:
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    return folder if folder and len(folder) < 60 and os.access(folder, os.W_OK) else tempfile.gettempdir()


def _feed(process: "subprocess.Popen[bytes]", data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):
        process.stdin.write(data)
        process.stdin.close()


def _close_streams(process: "subprocess.Popen[bytes]") -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End an ssh of ours and the jumps that it started: its session is its own."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
