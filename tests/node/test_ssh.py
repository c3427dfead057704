"""The system's ssh against a real sshd: what is refused, what is survived, what is left behind."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from auxtap.core.errors import ServerError
from auxtap.node.node_profile import SshSettings
from auxtap.node.ssh import ConnectionLostError, SshConnection, UnreachableError, refusal
from auxtap.tests.node.conftest import TestNode, free_port


def test_commands_run_as_the_nodes_user(test_node: TestNode) -> None:
    with SshConnection(test_node.settings()) as connection:
        done = connection.run("id -un; cat", stdin=b"\x00\xff sent", timeout_s=20)
        assert done.stdout == test_node.user.encode() + b"\n\x00\xff sent"
        assert connection.run("exit 3", timeout_s=20).status == 3


def test_a_jump_host_of_the_configuration_is_used(test_node: TestNode) -> None:
    before = test_node.jump.log.read_text().count("Accepted publickey")
    with SshConnection(test_node.settings("behind")) as connection:
        assert connection.run("echo here", timeout_s=20).stdout == b"here\n"
    assert test_node.jump.log.read_text().count("Accepted publickey") == before + 1


def test_all_commands_share_one_connection(test_node: TestNode) -> None:
    before = test_node.node.log.read_text().count("Accepted publickey")
    with SshConnection(test_node.settings()) as connection:
        for _ in range(5):
            connection.run("true", timeout_s=20)
    assert test_node.node.log.read_text().count("Accepted publickey") == before + 1


def test_a_wrong_host_key_is_refused(test_node: TestNode) -> None:
    other = (test_node.folder / "host-jump.pub").read_text()
    (test_node.folder / "wrong_hosts").write_text(f"[127.0.0.1]:{test_node.node.port} {other}")
    test_node.add_host("wrong", test_node.node.port, f"UserKnownHostsFile {test_node.folder / 'wrong_hosts'}")
    with SshConnection(test_node.settings("wrong")) as connection, pytest.raises(ServerError) as caught:
        connection.run("true", timeout_s=20)
    assert "its host key is not the one that is known" in caught.value.message
    assert "ssh-keygen -R wrong" in (caught.value.hint or "")


def test_an_unknown_host_key_is_refused_without_a_question(test_node: TestNode) -> None:
    test_node.add_host("unknown", test_node.node.port, f"UserKnownHostsFile {test_node.folder / 'none'}")
    with (
        SshConnection(test_node.settings("unknown")) as connection,
        pytest.raises(ServerError, match="its host key is not known here"),
    ):
        connection.run("true", timeout_s=20)
    assert not (test_node.folder / "none").exists()


def test_an_unknown_jump_host_is_refused_too(test_node: TestNode) -> None:
    test_node.add_host("badjump", test_node.jump.port, f"UserKnownHostsFile {test_node.folder / 'none'}")
    test_node.add_host("through", test_node.node.port, "ProxyJump badjump")
    with SshConnection(test_node.settings("through")) as connection, pytest.raises(ServerError, match="cannot connect"):
        connection.run("true", timeout_s=20)


def test_a_refused_key_is_named(test_node: TestNode) -> None:
    test_node.add_host("stranger", test_node.node.port, key="stranger")
    with SshConnection(test_node.settings("stranger")) as connection, pytest.raises(ServerError) as caught:
        connection.run("true", timeout_s=20)
    assert "it refuses our keys" in caught.value.message
    assert "ssh-add" in (caught.value.hint or "")


def test_a_host_that_would_ask_for_a_password_is_an_error(test_node: TestNode) -> None:
    """Its server offers passwords; nobody is asked, and nothing hangs."""
    folder = test_node.folder / "asking"
    folder.mkdir()
    shutil.copy(test_node.folder / "authorized_keys", folder)
    port = free_port()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    (folder / "conf").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'key'}\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"PasswordAuthentication yes\nAuthorizedKeysFile {folder / 'none'}\n"
    )
    sshd = subprocess.Popen([test_node.binary, "-D", "-f", str(folder / "conf"), "-E", str(folder / "log")])
    try:
        (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'key.pub').read_text()}")
        test_node.add_host("asking", port, f"UserKnownHostsFile {folder / 'known'}")
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
        with SshConnection(test_node.settings("asking")) as connection, pytest.raises(ServerError) as caught:
            connection.run("true", timeout_s=20)
    finally:
        sshd.kill()
        sshd.wait()
    assert "would ask for a password" in caught.value.message
    assert "auxtap types no passwords" in (caught.value.hint or "")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(5)
        yield listener.getsockname()[1]


def test_a_host_that_does_not_answer_ends_at_the_deadline(test_node: TestNode, silent_port: int) -> None:
    test_node.add_host("silent", silent_port)
    with (
        SshConnection(test_node.settings("silent", timeout_s=1.0)) as connection,
        pytest.raises(ServerError, match="it does not answer"),
    ):
        connection.run("true", timeout_s=20)


def test_a_closed_port_is_said_to_be_one(test_node: TestNode) -> None:
    test_node.add_host("closed", free_port())
    with (
        SshConnection(test_node.settings("closed")) as connection,
        pytest.raises(ServerError, match="nothing listens there"),
    ):
        connection.run("true", timeout_s=20)


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("ssh: Could not resolve hostname x: Name or service not known", "there is no such host"),
        ("Bad owner or permissions on /home/me/.ssh/config", "ssh's configuration is not usable"),
        ("ssh: connect to host x port 22: No route to host", "there is no way to it"),
        ("channel 0: open failed: administratively prohibited: open failed", "its jump host does not let us through"),
        ("something new", "something new"),
        ("", "ssh gave no reason"),
    ],
)
def test_what_ssh_says_is_put_into_words(said: str, meaning: str) -> None:
    assert meaning in refusal(SshSettings("x"), said).message


@pytest.mark.parametrize(
    ("said", "may_pass"),
    [
        ("ssh: connect to host turkey-01 port 22: Connection refused", True),
        ("ssh: connect to host turkey-01 port 22: Connection timed out", True),
        ("Connection reset by peer while reading the key exchange", True),
        ("me@turkey-01: Permission denied (publickey).", False),
        ("Host key verification failed.", False),
    ],
)
def test_what_may_pass_is_told_by_its_kind_and_never_by_a_hosts_name(said: str, may_pass: bool) -> None:
    for host in ("turkey-01", "keystone", "gpu01"):
        assert isinstance(refusal(SshSettings(host), said), UnreachableError) is may_pass


@pytest.mark.slow
def test_a_command_that_does_not_end_is_given_up(test_node: TestNode) -> None:
    with SshConnection(test_node.settings()) as connection:
        with pytest.raises(ServerError, match="did not answer within 1 s"):
            connection.run("sleep 60", timeout_s=1.0)
        assert connection.run("echo still", timeout_s=20).stdout == b"still\n"


def test_a_lost_connection_is_told_apart_and_opened_again(test_node: TestNode) -> None:
    with SshConnection(test_node.settings()) as connection:
        connection.run("true", timeout_s=20)
        threading.Timer(0.5, test_node.node.cut).start()
        with pytest.raises(ConnectionLostError):
            connection.run("sleep 60", timeout_s=30)
        assert connection.run("echo again", timeout_s=20).stdout == b"again\n"


def test_a_stream_gives_lines_as_they_come(test_node: TestNode) -> None:
    with SshConnection(test_node.settings()) as connection:
        with connection.stream("echo one; sleep 5; echo two") as lines:
            assert next(lines) == b"one\n"
        with connection.stream("echo one; exit 4") as lines, pytest.raises(ConnectionLostError):
            list(lines)


def test_a_port_is_forwarded_from_loopback_to_loopback(test_node: TestNode) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"through")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    local = free_port()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with SshConnection(test_node.settings()) as connection:
            with connection.forward(local, server.server_address[1]):
                assert opener.open(f"http://127.0.0.1:{local}/", timeout=10).read() == b"through"
                assert f"0100007F:{local:04X}" in Path("/proc/net/tcp").read_text()
            with pytest.raises(OSError):
                opener.open(f"http://127.0.0.1:{local}/", timeout=2)
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                taken.listen(1)
                port = taken.getsockname()[1]
                with pytest.raises(ServerError, match="cannot forward"), connection.forward(port, 1):
                    pass
    finally:
        server.shutdown()
        server.server_close()


def test_nothing_is_left_when_the_process_is_killed(test_node: TestNode) -> None:
    """The master lives as long as we do: not even SIGKILL leaves an ssh behind."""
    program = (
        "import sys, time; from pathlib import Path; from auxtap.node.ssh import SshConnection; "
        "from auxtap.node.node_profile import SshSettings; "
        f"c = SshConnection(SshSettings('node', Path({str(test_node.config)!r}))); c.run('true', timeout_s=20); "
        "print('up', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    assert test_node.node.connections()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    for _ in range(100):
        if not test_node.node.connections():
            break
        time.sleep(0.1)
    assert test_node.node.connections() == []
