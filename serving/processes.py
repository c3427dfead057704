"""Ports that are free, and process groups that end whole."""

import contextlib
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from auxtap.core.errors import ServerError

POLL_S = 0.1
# Below the ports that Linux gives outgoing connections, any of which could take a port between its choice and its use;
# far enough below 65535 for SGLang 0.5.13 on, which listens on the port 10000 above its own as well.
CHOSEN_PORTS = range(20000, 32768)
MAX_PROBES = 200
RELEASE_S = 5.0


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
                f"cannot listen on {host}:{port}: the port is in use{_listener(port)}",
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
        if _listener(port) or time.monotonic() >= deadline:
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


def _listener(port: int) -> str:
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            address = connection.laddr
            if connection.status == psutil.CONN_LISTEN and address and address.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return ""


def session_members(leader: int) -> list[psutil.Process]:
    """Return the live processes of the session that `leader` began, and its descendants in other sessions."""
    members: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == leader and _is_live(process):
                members[process.pid] = process
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(leader).children(recursive=True):
            if _is_live(process):
                members[process.pid] = process
    return list(members.values())


def stop_session(leader: int, patience: StopPatience = DEFAULT_PATIENCE) -> None:
    """End the session that `leader` began: INT, TERM, KILL, to all of it and to every descendant seen.

    A descendant that left the session is remembered from before its parent died. Only processes seen as members
    are signalled, and psutil checks start times, so a reused pid is never hit.

    Raises:
        ServerError: something survives SIGKILL (a process in an uninterruptible wait).
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
    for number, wait_s in steps:
        if not _signal_until_gone(number, wait_s, survivors):
            return
    left = ", ".join(f"{process.pid}" for process in survivors())
    if left:
        raise ServerError(
            f"server processes survive SIGKILL: {left}", hint="the kernel or a driver holds them: dmesg may say why"
        )


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
