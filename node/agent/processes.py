"""Know a process again, and end exactly the processes that one of ours began."""

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

POLL_S = 0.1
PROC = Path("/proc")
# How long a session gets after each signal before the next one.
STEPS = ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 10.0))


@dataclass(frozen=True)
class ProcessMark:
    """What tells a process from any other that had or will have its id: its start, and the boot that was in."""

    pid: int
    ticks: int
    boot: str

    def to_json(self) -> "dict[str, Any]":
        """Return it as it is recorded."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: "Mapping[str, Any]") -> "ProcessMark":
        """Read a recorded one."""
        return cls(int(value["pid"]), int(value["ticks"]), str(value["boot"]))


@dataclass(frozen=True)
class _Stat:
    pid: int
    state: str
    parent: int
    session: int
    ticks: int


def _read_stat(pid: int) -> "_Stat | None":
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def _boot() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def mark_process(pid: int) -> ProcessMark:
    """Return the mark of a process that lives.

    Raises:
        ProcessLookupError: it does not.
    """
    stat = _read_stat(pid)
    if stat is None:
        raise ProcessLookupError(pid)
    return ProcessMark(pid, stat.ticks, _boot())


def is_alive(mark: ProcessMark) -> bool:
    """Tell whether the very process still runs."""
    stat = _read_stat(mark.pid)
    return stat is not None and stat.state not in "ZX" and stat.ticks == mark.ticks and mark.boot == _boot()


def session_members(leader: ProcessMark) -> "list[ProcessMark]":
    """Return the live processes of the session that `leader` began, and their descendants in other sessions.

    The kernel gives a session's number to no other process while the session has members, so members whose leader is
    dead are still its own; where its process id is another process's now, the session is gone.
    """
    boot = _boot()
    if leader.boot != boot:
        return []
    stats = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            stat = _read_stat(int(entry.name))
            if stat is not None and stat.state not in "ZX":
                stats[stat.pid] = stat
    now = stats.get(leader.pid)
    if now is not None and now.ticks != leader.ticks:
        return []
    ours = {pid for pid, stat in stats.items() if stat.session == leader.pid and stat.ticks >= leader.ticks}
    grew = True
    while grew:
        children = {pid for pid, stat in stats.items() if stat.parent in ours} - ours
        ours |= children
        grew = bool(children)
    return [ProcessMark(pid, stats[pid].ticks, boot) for pid in sorted(ours)]


def send_signal(mark: ProcessMark, number: int) -> None:
    """Signal the very process, never another one that has its id by now."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(mark.pid)
        try:
            if is_alive(mark):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def stop_session(leader: ProcessMark) -> "list[int]":
    """End a session by INT, TERM and KILL; return the ids of what survives all three."""
    seen: dict[int, ProcessMark] = {}

    def survivors() -> "list[ProcessMark]":
        for member in session_members(leader):
            seen.setdefault(member.pid, member)
        return [member for member in seen.values() if is_alive(member)]

    for number, wait_s in STEPS:
        signalled = set()
        deadline = time.monotonic() + wait_s
        while left := survivors():
            for member in left:
                if member.pid not in signalled:
                    signalled.add(member.pid)
                    send_signal(member, number)
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
        else:
            return []
    return [member.pid for member in survivors()]
