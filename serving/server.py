"""A patched server as a context manager: started, watched until it can be used, stopped whole."""

import abc
import contextlib
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

from auxtap.core.errors import ServerError
from auxtap.serving.processes import DEFAULT_PATIENCE, StopPatience, choose_port, stop_session
from auxtap.serving.profile import LaunchSpec, build_launch, check_extra_arguments
from auxtap.serving.server_log import ServerLog
from auxtap.serving.spool import is_armed, other_final, prepare_spool

POLL_S = 0.1
HEALTH_TIMEOUT_S = 5.0
# From "HTTP answers" to "every writer's descriptor is in the spool": they are published before the server listens.
ARMED_GRACE_S = 5.0

Progress = Callable[[str], None]
Server = TypeVar("Server", bound="WatchedServer")


class RunningProcess(Protocol):
    """What is watched: the leader of a server's session."""

    @property
    def pid(self) -> int:
        """The leader's process id."""

    def poll(self) -> int | None:
        """Return the exit status once it has ended (negative: the signal), None before."""


def be_silent(message: str) -> None:
    """Report progress to nobody."""


@dataclass(frozen=True)
class StartNews:
    """What there is to tell of a server that starts; `refusal` is its own reason to end."""

    phases: tuple[str, ...]
    refusal: str | None = None
    is_ready: bool = False
    is_unarmed: bool = False


class StartWatch:
    """Looks at a server that starts, again and again; with a spool it is ready when every writer is armed."""

    def __init__(self, url: str, spool: Path | None, log: ServerLog) -> None:
        """Begin with the log's beginning."""
        self._url = url
        self._spool = spool
        self._log = log
        self._answered_at: float | None = None

    def look(self, *, is_alive: bool) -> StartNews:
        """Return what is new; a server that is dead or refuses is asked nothing."""
        news = self._log.read_news()
        if news.refusal is not None or not is_alive:
            return StartNews(news.phases, news.refusal)
        if self._answered_at is None and answers(self._url):
            self._answered_at = time.monotonic()
        if self._answered_at is None:
            return StartNews(news.phases)
        ready = self._spool is None or is_armed(self._spool)
        late = time.monotonic() - self._answered_at > ARMED_GRACE_S
        return StartNews(news.phases, is_ready=ready, is_unarmed=late and not ready)


def wait_ready(
    process: RunningProcess,
    spec: LaunchSpec,
    log: ServerLog,
    *,
    timeout_s: float,
    progress: Progress = be_silent,
) -> float:
    """Wait until the server answers and, when it is tapped, every writer is armed; return the seconds it took.

    Raises:
        ServerError: it died or refused (with the log's reason), is up but not armed, or `timeout_s` is over.
    """
    began = time.monotonic()
    watch = StartWatch(spec.url, spec.spool, log)
    while True:
        status = process.poll()
        news = watch.look(is_alive=status is None)
        for phase in news.phases:
            progress(phase)
        if news.refusal is not None:
            raise ServerError(news.refusal, hint=f"the server's log is {log.path}")
        if status is not None:
            raise died(status, log)
        seconds = time.monotonic() - began
        if news.is_ready:
            _check_final(spec)
            return seconds
        if news.is_unarmed:
            raise not_armed(spec, log)
        if seconds > timeout_s:
            last = log.last_lines(1)
            raise ServerError(
                f"the server is not ready after {timeout_s:.0f} s; its log ends: {last[0] if last else '(empty)'}",
                hint=f"give a longer --timeout, or read {log.path}",
            )
        time.sleep(POLL_S)


def _check_final(spec: LaunchSpec) -> None:
    found = other_final(spec.spool, spec.final) if spec.spool is not None else None
    if found is not None:
        tap = spec.tree or spec.plugin_patch or "the committed patch"
        raise ServerError(
            f"the server takes the {found} final state, not {spec.final}: the tap in {tap} is older",
            hint="revert the worktree and apply the patch anew",
        )


def not_armed(spec: LaunchSpec, log: ServerLog) -> ServerError:
    """Return the error of a server that answers and captures nothing."""
    if spec.plugin is None:
        tree = spec.tree or f"the SGLang of {spec.python}"
        why, remedy = f"{tree} may not be patched", "run auxtap apply for this tree"
    else:
        why, remedy = "SGLang did not load auxtap's plugin", "it loads plugins from 0.5.11 on; is SGLANG_PLUGINS set?"
    return ServerError(
        f"the server is up but its tap is not armed: {why}", hint=f"{remedy}; the server's log is {log.path}"
    )


def died(status: int, log: ServerLog) -> ServerError:
    """Return the error that says how and why a server ended."""
    reason = log.failure_reason()
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        killer = " (out of memory?)" if name == "SIGKILL" else ""
        how = f"was killed by {name}{killer}"
    else:
        how = f"ended with status {status}"
    return ServerError(f"the server {how}: {reason}", hint=f"read its log {log.path}")


def answers(url: str) -> bool:
    """Tell whether `GET /health` says that the server can be used."""
    # Loopback must not go through a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/health", timeout=HEALTH_TIMEOUT_S) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


class WatchedServer(abc.ABC):
    """The server of one LaunchSpec, in a session of its own; use it in a `with` block.

    Raises (on entering):
        ServerError: the port is in use, the spool is unusable, or the process cannot be started.
        UsageError: an extra argument is one the capture cannot live with.
    """

    def __init__(self, spec: LaunchSpec, patience: StopPatience = DEFAULT_PATIENCE) -> None:
        self.spec = spec
        self.log = ServerLog(spec.log)
        self._patience = patience
        self._process: RunningProcess | None = None

    @abc.abstractmethod
    def launch(self) -> RunningProcess:
        """Start the process, a session leader that appends to the log, and return it."""

    def __enter__(self: Server) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the server's leader, also after it has ended.

        Raises:
            ServerError: it was never started.
        """
        return self._started().pid

    def poll(self) -> int | None:
        """Return the exit status once it has ended (negative: the signal), None before."""
        return self._started().poll()

    def start(self) -> None:
        """Start the server; see the class for what can go wrong."""
        spec = self.spec
        check_extra_arguments(spec.extra_arguments, spec.final)
        choose_port(spec.host, spec.port)
        if spec.spool is not None:
            prepare_spool(spec.spool)
        for folder in (spec.log.parent, spec.bytecode):
            make_folder(folder)
        try:
            # Emptied here: a reader must never take an earlier server's lines for this one's.
            spec.log.write_bytes(b"")
            self.log = ServerLog(spec.log)
        except OSError as error:
            raise ServerError(
                f"cannot write the log {spec.log}: {error.strerror or error}", hint="name another with --log"
            ) from None
        self._process = self.launch()

    def wait_ready(self, *, timeout_s: float, progress: Progress = be_silent) -> float:
        """Wait until the server can be used and return the seconds it took; see `wait_ready` of this module."""
        return wait_ready(self._started(), self.spec, self.log, timeout_s=timeout_s, progress=progress)

    def wait_ended(self) -> ServerError:
        """Wait until the server ends by itself and return why."""
        process = self._started()
        while (status := process.poll()) is None:
            time.sleep(POLL_S)
        return died(status, self.log)

    def stop(self) -> None:
        """Stop every process of the server and wait until none is left; again is harmless.

        An interrupt meanwhile does not cut it short: it is raised when nothing is left.
        """
        process = self._process
        if process is None:
            return
        interrupted: KeyboardInterrupt | None = None
        patience = self._patience
        while True:
            try:
                stop_session(process.pid, patience)
                with contextlib.suppress(ServerError):
                    # Only to have it waited for.
                    process.poll()
                break
            except KeyboardInterrupt as error:
                # The second Ctrl-C of an impatient person: no more waiting, straight to SIGKILL.
                interrupted = error
                patience = StopPatience(0.0, 0.0, self._patience.kill_s)
        if interrupted is not None:
            raise interrupted

    def _started(self) -> RunningProcess:
        if self._process is None:
            raise ServerError("the server was not started")
        return self._process


class ServerProcess(WatchedServer):
    """A server started the ordinary way: one Python that imports SGLang."""

    def launch(self) -> RunningProcess:
        """Start Python on `sglang.launch_server`."""
        spec = self.spec
        launch = build_launch(spec)
        try:
            with spec.log.open("ab") as output:
                return subprocess.Popen(
                    launch.argv,
                    env=dict(launch.environment),
                    cwd=spec.log.parent,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise ServerError(
                f"cannot start {error.filename or spec.python}: {error.strerror or error}",
                hint="name a Python that runs with --python",
            ) from None


def make_folder(path: Path) -> None:
    """Make a folder and its parents.

    Raises:
        ServerError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ServerError(
            f"cannot make the folder {path}: {error.strerror or error}", hint="check its permissions, or name another"
        ) from None
