"""The command line as a whole: start-up, help, errors and exit codes."""

import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from auxtap import __version__, cli
from auxtap.commands import context
from auxtap.commands.menu import MENU
from auxtap.commands.views import console, patch_view
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


def test_the_menu_says_what_the_commands_say():
    group: Any = typer.main.get_command(cli.app)
    for name, entry in MENU.items():
        command = group.commands[name]
        assert command.name == name
        first = (command.help or "").strip().split("\n\n")[0]
        assert " ".join(first.split()) == entry.line


def test_help_imports_no_command():
    code = (
        "import sys\n"
        "from auxtap import cli\n"
        "cli.run(['--help'])\n"
        "print('LOADED', sorted(name for name in sys.modules if name.startswith('auxtap.')))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = ast.literal_eval(result.stdout.rpartition("LOADED")[2].strip())
    light = {
        "cli",
        "commands",
        "commands.context",
        "commands.menu",
        "commands.settings",
        "commands.terminations",
        "core",
        "core.version",
    }
    assert set(loaded) == {f"auxtap.{name}" for name in light | {"core.cache", "core.errors"}}


@pytest.mark.parametrize("width", ["60", "80"])
def test_help_keeps_to_narrow_terminals(width):
    group: Any = typer.main.get_command(cli.app)
    for path in [[], *_paths(group, [])]:
        printed = _help(path, width)
        assert max(map(len, printed.splitlines())) <= int(width), path


def _paths(group: Any, above: list[str]) -> Iterator[list[str]]:
    for name in group.commands:
        yield [*above, name]
        if hasattr(group.commands[name], "commands"):
            yield from _paths(group.commands[name], [*above, name])


def _help(path: list[str], width: str) -> str:
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setenv("COLUMNS", width)
        assert cli.run([*path, "--help"]) == 0
    return printed.getvalue()


def test_a_mistyped_command_is_told_the_nearest():
    assert "Did you mean 'trace'?" in _auxtap("trcae").stderr


@pytest.mark.slow
def test_no_color_and_plain_when_piped():
    result = _auxtap("doctor", NO_COLOR="1", FORCE_COLOR="1")
    assert "\x1b[3" not in result.stdout and "\x1b[1;3" not in result.stdout
    assert "\x1b[" not in _auxtap("doctor").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_typers_own(shell):
    # Typer looks for a shell among its ancestors; where it is told not to look, the shell is named.
    result = _auxtap("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert result.returncode == 0, result.stderr
    assert "_AUXTAP_COMPLETE" in result.stdout and shell in result.stdout


def test_completion_completes_commands_and_options():
    words = {"_AUXTAP_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    assert "trace" in _auxtap(COMP_WORDS="auxtap tr", **words).stdout.split()
    words["COMP_CWORD"] = "2"
    assert "--num-layers" in _auxtap(COMP_WORDS="auxtap trace --num", **words).stdout.split()


def test_every_usage_error_has_a_next_step():
    root = Path(cli.__file__).parent
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True).stdout
    bare = []
    for name in listed.splitlines():
        if name.startswith(("tests/", "fixtures/", "examples/", "docs/")):
            continue
        for node in ast.walk(ast.parse((root / name).read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != "UsageError":
                continue
            if "hint" not in {keyword.arg for keyword in node.keywords}:
                bare.append(f"{name}:{ast.unparse(node.args[0])[:60]}")
    assert bare == []


def test_tables_lose_nothing_in_a_narrow_terminal(monkeypatch, capsys):
    rows = [
        patch_view.InsertionRow("gate", "model_executor/forward_batch_info.py", 61, "ForwardBatch.init_new", "there")
    ]
    facts = [("patch digest", "0123456789abcdef" * 4), ("checks passed", "15 of 15")]
    printed = {}
    for width in ("160", "60"):
        monkeypatch.setenv("COLUMNS", width)
        console.out.cache_clear()
        patch_view.show(patch_view.insertions_table(rows), patch_view.facts_table(facts))
        assert cli.run(["config", "--all"]) == 0
        printed[width] = capsys.readouterr().out
    console.out.cache_clear()
    assert max(map(len, printed["60"].splitlines())) <= 60
    # Folded cells continue on the next line: what counts is that every character is there.
    whole, folded = (sorted(re.sub(r"[\s─]", "", text)) for text in (printed["160"], printed["60"]))
    assert whole == folded
