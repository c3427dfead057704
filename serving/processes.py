"""Ports that are free, processes that are known again, and process groups that end whole."""

import contextlib
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from auxtap.core.errors import ServerError

POLL_S = 0.1
# Below the ports that Linux gives outgoing connections, any of which could take a port between its choice and its use;
# far enough below 65535 for SGLang 0.5.13 on, which listens on the port 10000 above its own as well.
CHOSEN_PORTS = range(20000, 32768)
MAX_PROBES = 200
RELEASE_S = 5.0
PROC = Path("/proc")


@dataclass(frozen=True)
class StopPatience:
    """How long a process group gets after each signal before the next one."""

    interrupt_s: float = 10.0
    terminate_s: float = 5.0
    kill_s: float = 10.0


DEFAULT_PATIENCE = StopPatience()


def port_is_free(host: str, port: int) -> bool:
    """Tell whether a server could listen on `host:port` now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections are in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def choose_port(host: str, port: int) -> int:
    """Return `port` when it is free, or any free one when it is 0.

    Raises:
        ServerError: something else listens on it, or `host` is no address of this machine.
    """
    if port:
        if not _becomes_free(host, port):
            raise ServerError(
                f"cannot listen on {host}:{port}: the port is in use{describe_listener(port)}",
                hint="stop what uses it, or give another --port (0 picks a free one)",
            )
        return port
    for _ in range(MAX_PROBES):
        chosen = secrets.choice(CHOSEN_PORTS)
        if port_is_free(host, chosen):
            return chosen
    if _owns(host):
        raise ServerError(f"no port of {MAX_PROBES} tried is free on {host}", hint="give a --port")
    raise ServerError(
        f"cannot listen on {host}: it is no address of this machine",
        hint="leave out --host, or give one of this machine",
    )


def _becomes_free(host: str, port: int) -> bool:
    """Tell whether a port is free, waiting while nobody is to be seen who holds it.

    A killed process is a zombie as soon as its first thread is gone; its sockets close when the last one is.
    """
    deadline = time.monotonic() + RELEASE_S
    while not port_is_free(host, port):
        if describe_listener(port) or time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _owns(host: str) -> bool:
    """Tell whether `host` is an address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def describe_listener(port: int) -> str:
    """Say which process of this user listens on a port, empty when that cannot be seen."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            address = connection.laddr
            if connection.status == psutil.CONN_LISTEN and address and address.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return ""


@dataclass(frozen=True)
class ProcessMark:
    """What tells a process from any other that had or will have its id: its start, and the boot that was in."""

    pid: int
    ticks: int
    boot: str

    def to_json(self) -> dict[str, Any]:
        """Return it as it is recorded."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ProcessMark":
        """Read a recorded one."""
        return cls(int(value["pid"]), int(value["ticks"]), str(value["boot"]))


def mark_process(pid: int) -> ProcessMark:
    """Return the mark of a process that lives.

    Raises:
        ProcessLookupError: it does not.
    """
    ticks = _start_ticks(pid)
    if ticks is None:
        raise ProcessLookupError(pid)
    return ProcessMark(pid, ticks, _boot())


def is_alive(mark: ProcessMark) -> bool:
    """Tell whether the very process still runs."""
    return _find(mark) is not None


def _find(mark: ProcessMark) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(mark.pid)
        if mark.boot == _boot() and mark.ticks == _start_ticks(mark.pid) and _is_live(process):
            return process
    return None


def _start_ticks(pid: int) -> int | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return int(text[text.rindex(")") + 2 :].split()[19])


def _boot() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def send_signal(mark: ProcessMark, number: int) -> None:
    """Signal the very process, never another one that has its id by now."""
    process = _find(mark)
    if process is not None:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def session_members(leader: int | ProcessMark) -> list[psutil.Process]:
    """Return the live processes of the session that `leader` began, and their descendants in other sessions.

    The kernel gives a session's number to no other process while the session has members, so members whose leader is
    dead are still its own; where the process id of a marked leader is another process's now, the session is gone.
    """
    pid = leader if isinstance(leader, int) else leader.pid
    if isinstance(leader, ProcessMark) and (leader.boot != _boot() or _start_ticks(pid) not in (None, leader.ticks)):
        return []
    live: dict[int, psutil.Process] = {}
    parents: dict[int, int] = {}
    ours: set[int] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError), process.oneshot():
            if _is_live(process):
                parents[process.pid] = process.ppid()
                live[process.pid] = process
                if os.getsid(process.pid) == pid:
                    ours.add(process.pid)
    while grown := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= grown
    return [live[member] for member in sorted(ours)]


def stop_session(leader: int | ProcessMark, patience: StopPatience = DEFAULT_PATIENCE) -> None:
    """End a session; see `end_session`.

    Raises:
        ServerError: something survives SIGKILL (a process in an uninterruptible wait).
    """
    left = ", ".join(map(str, end_session(leader, patience)))
    if left:
        raise ServerError(
            f"server processes survive SIGKILL: {left}", hint="the kernel or a driver holds them: dmesg may say why"
        )


def end_session(leader: int | ProcessMark, patience: StopPatience = DEFAULT_PATIENCE) -> list[int]:
    """End the session that `leader` began: INT, TERM, KILL, to all of it and to every descendant seen.

    A descendant that left the session is remembered from before its parent died. Only processes seen as members
    are signalled, and psutil checks start times, so a reused pid is never hit. The ids of what survives are returned.
    """
    seen: dict[int, psutil.Process] = {}

    def survivors() -> list[psutil.Process]:
        for process in session_members(leader):
            seen.setdefault(process.pid, process)
        return [process for process in seen.values() if _is_live(process)]

    steps = (
        (signal.SIGINT, patience.interrupt_s),
        (signal.SIGTERM, patience.terminate_s),
        (signal.SIGKILL, patience.kill_s),
    )
    if not all(_signal_until_gone(number, wait_s, survivors) for number, wait_s in steps):
        return []
    return [process.pid for process in survivors()]


def _signal_until_gone(
    number: signal.Signals, wait_s: float, survivors: Callable[[], Sequence[psutil.Process]]
) -> bool:
    """Signal every survivor once, newcomers too, and tell whether any is left after `wait_s`."""
    signalled: set[int] = set()
    deadline = time.monotonic() + wait_s
    while left := survivors():
        for process in left:
            if process.pid not in signalled:
                signalled.add(process.pid)
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
        if time.monotonic() >= deadline:
            return True
        time.sleep(POLL_S)
    return False


def _is_live(process: psutil.Process) -> bool:
    """Tell whether anything of a process still runs.

    A killed process is a zombie as soon as its first thread is gone; its sockets and locks go with the last one.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        if process.is_running():
            return bool(process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    return False
