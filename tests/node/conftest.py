"""A real OpenSSH server on a loopback port, with keys of its own and, for root, an unprivileged user."""

import contextlib
import getpass
import importlib.metadata
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from auxtap.node.agent.main import NEEDED
from auxtap.node.node_profile import SshSettings
from auxtap.serving.processes import choose_port
from auxtap.tests.leftovers import MARK

# The agent's own needs with theirs.
NODE_PACKAGES = (
    *NEEDED, "anyio", "certifi", "h11", "httpcore", "idna", "typing_extensions",
)  # fmt: skip
USER_PREFIX = "auxtap-test-"
# A user of this run alone: two runs at once must not take each other's away.
USER = f"{USER_PREFIX}{os.getpid()}"


@dataclass
class Sshd:
    """One sshd: `alias` is its name in the client's configuration."""

    alias: str
    port: int
    folder: Path
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def log(self) -> Path:
        return self.folder / f"sshd-{self.alias}.log"

    def start(self, binary: str, user: str) -> None:
        key = self.folder / f"host-{self.alias}"
        if not key.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        config = self.folder / f"sshd-{self.alias}.conf"
        lines = [
            f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {key}", "PidFile none",
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}", "PasswordAuthentication no",
            "KbdInteractiveAuthentication no", "UsePAM no", "StrictModes no", f"AllowUsers {user}",
            "AllowTcpForwarding yes", "GatewayPorts no", "LogLevel VERBOSE", "MaxStartups 100",
            # On one line: sshd takes the first of its kind.
            f"SetEnv PATH={self.folder / 'programs'} {MARK}={os.environ[MARK]}",
        ]  # fmt: skip
        config.write_text("\n".join(lines) + "\n")
        command = [binary, "-D", "-f", str(config), "-E", str(self.log)]
        self.process = subprocess.Popen(command, start_new_session=True)
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise RuntimeError(f"sshd does not start: {self.log.read_text()}")

    def connections(self) -> list[int]:
        """The processes that serve connections, children of the listening one."""
        assert self.process is not None
        return children(self.process.pid)

    def cut(self) -> int:
        """Kill every connection; return how many there were."""
        killed = 0
        for pid in self.connections():
            for each in [*children(pid), pid]:
                # Only sshd's own processes: what runs on the "node" is to go on.
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{each}/comm").read_text().strip() == "sshd":
                        os.kill(each, signal.SIGKILL)
                        killed += 1
        return killed

    def stop(self) -> None:
        if self.process is not None:
            self.cut()
            self.process.kill()
            self.process.wait()
            self.process = None


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                text = (entry / "stat").read_text()
                if int(text[text.rindex(")") + 2 :].split()[1]) == pid:
                    found.append(int(entry.name))
    return found


def lives(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"


def processes_of(uid: int) -> list[int]:
    """The processes of a user that only these tests have."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid and lives(int(entry.name)):
                    found.append(int(entry.name))
    return found


@dataclass
class TestNode:
    """Two servers of one user: `node`, and `jump` in front of it."""

    __test__ = False

    folder: Path
    user: str
    home: Path
    binary: str
    node: Sshd
    jump: Sshd
    hosts: dict[str, list[str]] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.folder / "ssh_config"

    def settings(self, alias: str = "node", timeout_s: float = 10.0) -> SshSettings:
        return SshSettings(alias, self.config, timeout_s)

    def add_host(self, alias: str, port: int, *lines: str, key: str = "client") -> None:
        self.hosts[alias] = [
            f"Host {alias}", "  HostName 127.0.0.1", f"  Port {port}", f"  User {self.user}",
            f"  IdentityFile {self.folder / key}", "  IdentitiesOnly yes", "  IdentityAgent none",
            *([] if any("KnownHosts" in line for line in lines)
              else [f"  UserKnownHostsFile {self.folder / 'known_hosts'}"]),
            "  GlobalKnownHostsFile /dev/null", *(f"  {line}" for line in lines),
        ]  # fmt: skip
        self.config.write_text("\n".join(line for host in self.hosts.values() for line in host) + "\n")

    def run_as(self, *command: str) -> None:
        """Run a command as the node's user."""
        prefix = ["runuser", "-u", self.user, "--"] if os.geteuid() == 0 and self.user != getpass.getuser() else []
        subprocess.run([*prefix, *command], check=True, cwd="/")

    def own(self, path: Path) -> None:
        """Give a tree to the node's user."""
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "-h", self.user, str(path)], check=True)


def link_programs(folder: Path) -> None:
    """Make the node's PATH: this machine's programs but for git, which a node need not have."""
    folder.mkdir(mode=0o755)
    for place in ("/usr/local/bin", "/usr/bin", "/bin"):
        for program in Path(place).iterdir():
            if not program.name.startswith("git") and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)


def free_port() -> int:
    return choose_port("127.0.0.1", 0)


def find_sshd() -> str:
    binary = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    for needed, package in ((binary, "openssh-server"), (shutil.which("ssh"), "openssh-client")):
        if needed is None:
            pytest.skip(f"there is no OpenSSH here: apt-get install {package}")
    assert binary is not None
    return binary


def remove_users_of_dead_runs() -> None:
    """Remove the users that killed test runs have left; their names hold the process id of the run."""
    for entry in pwd.getpwall():
        number = entry.pw_name.removeprefix(USER_PREFIX)
        if number != entry.pw_name and number.isdigit() and not psutil.pid_exists(int(number)):
            subprocess.run(["userdel", entry.pw_name], capture_output=True)


@pytest.fixture(scope="session")
def test_node() -> Iterator[TestNode]:
    """A node that is this machine, reached by ssh through loopback only."""
    binary = find_sshd()
    folder = Path(tempfile.mkdtemp(prefix="auxtap-node-"))
    folder.chmod(0o755)
    made_user = os.geteuid() == 0
    user = USER if made_user else getpass.getuser()
    home = folder / "home"
    if made_user:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        remove_users_of_dead_runs()
        subprocess.run(["useradd", "--create-home", "--home-dir", str(home), "--shell", "/bin/bash", USER], check=True)
        subprocess.run(["usermod", "-p", "*", USER], check=True)
    else:
        home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    node = TestNode(folder, user, home, binary, Sshd("node", free_port(), folder), Sshd("jump", free_port(), folder))
    for name in ("client", "stranger"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    link_programs(folder / "programs")
    (folder / "authorized_keys").write_bytes((folder / "client.pub").read_bytes())
    (folder / "authorized_keys").chmod(0o644)
    try:
        for server in (node.node, node.jump):
            server.start(binary, user)
        known = "".join(
            f"[127.0.0.1]:{server.port} {(folder / f'host-{server.alias}.pub').read_text()}"
            for server in (node.node, node.jump)
        )
        (folder / "known_hosts").write_text(known)
        node.add_host("node", node.node.port)
        node.add_host("jump", node.jump.port)
        node.add_host("behind", node.node.port, "ProxyJump jump")
        yield node
    finally:
        node.node.stop()
        node.jump.stop()
        if made_user:
            for pid in processes_of(pwd.getpwnam(USER).pw_uid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["userdel", "--force", USER], capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def node_python(test_node: TestNode) -> Path:
    """A Python that the node's user may run, with the packages that every SGLang brings along."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = shutil.which(version, path="/usr/bin:/bin:/usr/local/bin")
    if base is None:
        pytest.skip(f"there is no {version} that the node's user could run")
    folder = test_node.folder / "python"
    subprocess.run([base, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = folder / "lib" / version / "site-packages"
    for name in NODE_PACKAGES:
        files = importlib.metadata.distribution(name).files or []
        for top in {Path(file.parts[0]) for file in files} - {Path("..")}:
            source = Path(str(importlib.metadata.distribution(name).locate_file(top)))
            if source.is_dir():
                shutil.copytree(source, packages / top, dirs_exist_ok=True)
            elif source.is_file():
                shutil.copy(source, packages / top)
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    return folder / "bin" / "python"


@pytest.fixture
def said() -> list[str]:
    """What progress reports were made."""
    return []


@pytest.fixture
def say(said: list[str]) -> Callable[[str], None]:
    return said.append


@dataclass(frozen=True)
class Workplace:
    """What the node's user needs for a CPU engine: SGLang, a Python that serves it, a model; odd paths on purpose."""

    node: TestNode
    sglang: Path
    python: Path
    model: Path
    root: Path

    def write_profile(self, path: Path, port: int, **lines: str) -> Path:
        """Write a profile for this node; `lines` replace whole tables' contents."""
        tables = {
            "ssh": f'host = "behind"\nconfig = "{self.node.config}"\nconnect_timeout_s = 10',
            "node": f"root = {quoted(self.root)}\npython = {quoted(self.python)}\nsglang = {quoted(self.sglang)}\n"
            "cpu = true",
            "model": f"path = {quoted(self.model)}\nlayers = [2, 3, 6]",
            "parallel": "tp = 1",
            "server": f'port = {port}\nready_timeout_s = 300\narguments = ["--max-running-requests", "1"]',
            "storage": f"spool = {quoted(self.root / 'the spool')}\nstore = {quoted(self.root / 'store one')}\n"
            'spool_bytes = "100M"\nstore_bytes = "100M"',
            **lines,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"[{name}]\n{text}\n\n" for name, text in tables.items()))
        return path


def quoted(path: Path) -> str:
    """A path as a TOML basic string."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


class Cli:
    """auxtap's command line in a folder of its own, as a person uses it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "auxtap.cli", *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def run(self, *arguments: str, code: int = 0) -> Any:
        process = self.start(*arguments)
        out, said = process.communicate(timeout=600)
        assert process.returncode == code, f"{arguments}: {said}"
        return json.loads(out) if "--json" in arguments and out else out + said

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.run("status", "--node", self.name, "--json")
        return found


def samples(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((store / "samples").iterdir())}


@contextlib.contextmanager
def paused(pids: list[int]) -> Iterator[None]:
    """Let processes stand still for the length of the block."""
    signal_all(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_all(pids, signal.SIGCONT)


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)
