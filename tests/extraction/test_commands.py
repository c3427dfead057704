"""`auxtap extract` and `auxtap check` as a person types them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Auxtap = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def auxtap() -> Auxtap:
    def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", "from auxtap.cli import main; main()", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    return run


@pytest.fixture
def command(server: Any, tmp_path: Path, write_dataset: Callable[..., Path]) -> Callable[..., list[object]]:
    def arguments(n_samples: int = 3, dataset: Path | None = None) -> list[object]:
        where = ["--server", server.url, "--spool", server.tap.spool, "--out", tmp_path / "store"]
        return ["extract", dataset or write_dataset(n_samples), *where, "--parts-timeout", 0.3, "--canary", 0]

    return arguments


@pytest.mark.slow
def test_extract_then_check(auxtap: Auxtap, command: Callable[..., list[object]], tmp_path: Path) -> None:
    result = auxtap(*command())
    assert result.returncode == 0, result.stderr
    assert "stored now" in result.stdout and "tokens/s" in result.stdout and "\x1b[" not in result.stdout
    again = auxtap(*command(), "--json")
    record = json.loads(again.stdout)
    assert again.returncode == 0 and (record["already_stored"], record["stored"], record["complete"]) == (3, 0, True)
    check = auxtap("check", tmp_path / "store")
    assert check.returncode == 0 and "is sound" in check.stdout and "3 samples in 3 files" in check.stdout
    (tmp_path / "store/samples/00000001.pp0.safetensors").write_bytes(b"x")
    check = auxtap("check", tmp_path / "store", "--json")
    assert check.returncode == 8 and "error: store" in check.stderr and "hint: " in check.stderr
    files = {finding["file"] for finding in json.loads(check.stdout)["findings"]}
    assert files == {"samples/00000001.pp0.safetensors"}


@pytest.mark.slow
def test_a_failed_sample_is_exit_1(auxtap: Auxtap, command: Callable[..., list[object]], tap: Any) -> None:
    tap.faults[1] = ["400"]
    result = auxtap(*command())
    assert result.returncode == 1
    assert "failed: s/1: the server answered 400: The input (6 tokens) is longer" in result.stdout
    assert "s/1: failed" in result.stderr


@pytest.mark.slow
def test_errors_have_a_next_step_and_the_right_code(
    auxtap: Auxtap, command: Callable[..., list[object]], tmp_path: Path, server: Any
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "../../x", "input_ids": [1]}\n')
    result = auxtap(*command(dataset=bad))
    assert result.returncode == 7 and "bad.jsonl:1: id '../../x' looks like a path" in result.stderr
    assert "hint: " in result.stderr and not server.requests
    chat = tmp_path / "chat.jsonl"
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    chat.write_text(json.dumps({"id": "a", "messages": turns}))
    result = auxtap(*command(dataset=chat))
    assert result.returncode == 2 and "--tokenizer DIR" in result.stderr
    assert auxtap(*command(), "--format", "npz").returncode == 2
    assert auxtap(*command(), "--max-new-tokens", "2").returncode == 2
    assert auxtap(*command(), "--max-spool-bytes", "lots").returncode == 2
    server.tap.spool.chmod(0o755)
    result = auxtap(*command())
    assert result.returncode == 7 and "it must be 0700" in result.stderr
    result = auxtap("check", tmp_path / "nowhere")
    assert result.returncode == 7 and "is no store" in result.stderr


def test_a_dead_server_is_exit_6(auxtap: Auxtap, command: Callable[..., list[object]], server: Any) -> None:
    arguments = command()
    server.stop()
    result = auxtap(*arguments)
    assert result.returncode == 6 and "cannot be reached" in result.stderr and "auxtap serve" in result.stderr


@pytest.mark.slow
def test_ctrl_c_is_exit_130_and_the_same_command_goes_on(
    auxtap: Auxtap, command: Callable[..., list[object]], server: Any
) -> None:
    server.delay_s = 0.1
    line = [sys.executable, "-c", "from auxtap.cli import main; main()", *map(str, command(60))]
    child = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len(server.requests) < 10:
        assert child.poll() is None
    child.send_signal(2)
    stdout, stderr = child.communicate(timeout=30)
    assert child.returncode == 130 and "the same command continues" in stdout and "Traceback" not in stderr
    server.delay_s = 0.0
    result = auxtap(*command(60), "--json")
    record = json.loads(result.stdout)
    assert record["already_stored"] >= 10 and record["complete"] and result.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_a_terminal_gets_a_bar(command: Callable[..., list[object]], server: Any) -> None:
    import pty

    master, slave = pty.openpty()
    server.delay_s = 0.05
    line = [sys.executable, "-c", "from auxtap.cli import main; main()", *map(str, command(12))]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    child = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=slave, env=environment)
    os.close(slave)
    seen = b""
    try:
        while data := os.read(master, 65536):
            seen += data
    except OSError:
        pass  # a pseudo-terminal whose other end is closed
    os.close(master)
    assert child.wait(timeout=30) == 0
    assert b"12/12 samples" in seen and b"tokens/s" in seen and b"\x1b[" in seen
