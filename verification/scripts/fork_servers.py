"""Import SGLang once and fork a real server per case; run by the Python of an engine environment.

Started with the same environment as a server (stand-ins, patched tree, tap switched on). One JSON object a line:
requests on stdin, answers on stdout; everything that SGLang prints goes to stderr.

    {"op": "start", "argv": [...], "env": {...}, "log": PATH, "first": PATH | null}  ->  {"pid": PID}
    {"op": "poll", "pid": PID}                                   ->  {"status": null | EXIT STATUS | -SIGNAL}

`first` is a Python file that the server runs before it begins: tests put faults into the patched code with it.

Each server leads a session of its own and dies with this process; this process dies with its parent, and ends when
its stdin does.
"""

import contextlib
import ctypes
import json
import multiprocessing
import os
import runpy
import signal
import sys
import time
import traceback
from typing import Any, NoReturn, TextIO

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, `parent` being its pid as it was."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def import_sglang() -> None:
    """Import what a server and its schedulers import, so that every fork has it."""
    import sglang.launch_server
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.model_loader.loader
    import sglang.srt.models.registry  # noqa: F401


def keep_forking() -> None:
    """Have SGLang's processes forked, with what is imported here; SGLang itself asks for `spawn`."""
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *args, **kwargs: None


def start_server(request: dict[str, Any], control: TextIO) -> int:
    """Fork a server and return its pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    zygote = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            become_server(request, control, zygote)
        finally:
            os._exit(1)
    return pid


def become_server(request: dict[str, Any], control: TextIO, zygote: int) -> NoReturn:
    """Run SGLang's server in this forked process, its output in the log of its own."""
    status = 1
    try:
        os.setsid()
        die_with_parent(zygote)
        control.close()
        redirect(request["log"])
        os.environ.update(request["env"])
        sys.argv = ["sglang.launch_server", *request["argv"]]
        if request["first"] is not None:
            runpy.run_path(request["first"], run_name="__first__")
        import sglang.launch_server as launcher
        from sglang.srt.server_args import prepare_server_args

        # Up to 0.5.4 the module had no function of that name, and called this one itself.
        run_server = getattr(launcher, "run_server", None) or launcher.launch_server
        run_server(prepare_server_args(request["argv"]))
        status = 0
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def redirect(log: str) -> None:
    """Read nothing and append everything to `log`."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)


class Nursery:
    """The servers that were forked, and how those ended that have."""

    def __init__(self) -> None:
        self._statuses: dict[int, int | None] = {}

    def add(self, pid: int) -> None:
        """Remember a new server."""
        self._statuses[pid] = None

    def poll(self, pid: int) -> int | None:
        """Return how a server ended, None while it runs."""
        if self._statuses[pid] is None:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._statuses[pid] = os.waitstatus_to_exitcode(status)
        return self._statuses[pid]

    def kill_all(self) -> None:
        """Kill every session that is left."""
        for pid in self._statuses:
            if self.poll(pid) is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)


def answer(request: dict[str, Any], nursery: Nursery, control: TextIO) -> dict[str, Any]:
    """Carry out one request."""
    if request["op"] == "start":
        pid = start_server(request, control)
        nursery.add(pid)
        return {"pid": pid}
    return {"status": nursery.poll(request["pid"])}


def main() -> None:
    """Serve requests until stdin ends."""
    die_with_parent(os.getppid())
    control = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    began = time.monotonic()
    keep_forking()
    import_sglang()
    print(json.dumps({"import_s": round(time.monotonic() - began, 1)}), file=control, flush=True)
    nursery = Nursery()
    try:
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line), nursery, control)), file=control, flush=True)
    finally:
        nursery.kill_all()


if __name__ == "__main__":
    main()
