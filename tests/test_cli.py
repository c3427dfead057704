"""The command line as a whole: start-up, help, errors and exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from auxtap import __version__, cli
from auxtap.commands import context
from auxtap.core.errors import (
    AuxtapError,
    ExitCode,
    ExtractionError,
    IntegrityError,
    PatchError,
    ServerError,
    SourceError,
    UsageError,
    WorktreeError,
)

COMMANDS = ("trace", "patch", "verify", "apply", "revert", "engine", "serve", "canary", "extract", "check", "demo")


def _auxtap(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from auxtap.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_help_needs_nothing_heavy():
    code = (
        "import json, sys\n"
        "from auxtap import cli\n"
        "code = cli.run(['--help'])\n"
        "heavy = ('torch', 'libcst', 'git', 'transformers', 'httpx', 'numpy', 'sglang', 'safetensors', 'pydantic')\n"
        "print('LOADED', json.dumps([code, [name for name in heavy if name in sys.modules]]))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout.rpartition("LOADED")[2]) == [0, []]


def test_help_lists_the_commands():
    result = _auxtap("--help")
    assert result.returncode == 0
    for command in COMMANDS:
        assert f"  {command}" in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    result = _auxtap(command, "--help")
    assert result.returncode == 0, result.stderr
    assert "Usage: " in result.stdout
    assert "\x1b[" not in result.stdout


def test_version():
    assert _auxtap("--version").stdout == f"auxtap {__version__}\n"


@pytest.mark.parametrize("arguments", [["nonsense"], ["trace"], ["trace", "--nonsense", "x"]])
def test_wrong_use_is_exit_code_2_with_a_next_step(arguments):
    result = _auxtap(*arguments)
    assert result.returncode == ExitCode.USAGE
    assert result.stderr.startswith("error: ")
    assert "hint: run auxtap" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError, 2),
        (SourceError, 3),
        (PatchError, 4),
        (WorktreeError, 5),
        (ServerError, 6),
        (ExtractionError, 7),
        (IntegrityError, 8),
    ],
)
def test_each_error_has_its_exit_code(error, code, monkeypatch, capsys):
    def fail(**_: object) -> None:
        raise error("what failed [bold]at x.py:3[/]", hint="do that")

    monkeypatch.setattr(cli, "app", fail)
    assert cli.run([]) == code
    assert capsys.readouterr().err == "error: what failed [bold]at x.py:3[/]\nhint: do that\n"


def test_an_interrupt_is_130(monkeypatch, capsys):
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    assert cli.run([]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


def test_a_bug_leaves_its_traceback_in_a_log(monkeypatch, capsys, tmp_path):
    def broken(**_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setenv("AUXTAP_CACHE", str(tmp_path))
    monkeypatch.setattr(cli, "app", broken)
    assert cli.run([]) == ExitCode.BUG
    printed = capsys.readouterr().err
    assert "ZeroDivisionError" in printed
    assert "Traceback" not in printed
    log = tmp_path / "logs" / "last-error.log"
    assert str(log) in printed
    assert "oops" in log.read_text()


def test_exit_codes_are_the_documented_ones():
    assert [code.value for code in ExitCode] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 70, 130]


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("AUXTAP_CACHE", str(tmp_path / "x"))
    assert context.cache_layout().root == tmp_path / "x"
    monkeypatch.setenv("AUXTAP_CACHE", "")
    with pytest.raises(UsageError):
        context.cache_layout()
    monkeypatch.delenv("AUXTAP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert context.cache_layout().root == Path(tmp_path / "home" / "auxtap")


def test_layers_are_parsed():
    assert context.parse_layers("31,3, 59") == (3, 31, 59)
    for text in ("", "x", "3,3", "0,1", "-1", "1;2"):
        with pytest.raises(AuxtapError):
            context.parse_layers(text)
