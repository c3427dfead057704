"""Flag before environment before file before default, and a file that cannot say nonsense."""

import json
from pathlib import Path

import pytest
import typer.main

from auxtap import cli
from auxtap.commands import settings
from auxtap.commands.context import cache_layout, use_cache
from auxtap.core.errors import UsageError
from auxtap.serving import profile
from auxtap.tap import protocol

GROUP = typer.main.get_command(cli.app)


@pytest.fixture(autouse=True)
def nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for place in settings.options(GROUP):
        monkeypatch.delenv(place.variable, raising=False)
    for name in (settings.ENV_FILE, settings.ENV_CACHE):
        monkeypatch.delenv(name, raising=False)
    yield
    use_cache(None)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[tuple[str, str], tuple[object, str]]:
    assert cli.run(["config", *arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    return {(row["command"], row["option"]): (row["value"], row["origin"]) for row in record["settings"]}


def role_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """`trace` refuses a role by its name, before it opens anything: that shows which value holds."""
    assert cli.run(["trace", "pypi:0.5.9", *arguments]) == 2
    return capsys.readouterr().err.split("'")[1]


def test_flag_environment_file_default(monkeypatch, capsys) -> None:
    Path("auxtap.toml").write_text('[trace]\nrole = "from-file"\n')
    assert role_of(capsys) == "from-file"
    assert shown(capsys)["trace", "--role"] == ("from-file", "file auxtap.toml")
    monkeypatch.setenv("AUXTAP_TRACE_ROLE", "from-environment")
    assert role_of(capsys) == "from-environment"
    assert shown(capsys)["trace", "--role"] == ("from-environment", "environment AUXTAP_TRACE_ROLE")
    assert role_of(capsys, "--role", "from-flag") == "from-flag"
    monkeypatch.delenv("AUXTAP_TRACE_ROLE")
    Path("auxtap.toml").unlink()
    assert shown(capsys, "trace")["trace", "--role"] == (None, "default")
    assert shown(capsys, "trace")["trace", "--model"] == ("deepseek,kimi_k25", "default")


def test_where_the_file_is(tmp_path, monkeypatch, capsys) -> None:
    assert settings.find_file() is None
    home = tmp_path / "home/auxtap/auxtap.toml"
    home.parent.mkdir(parents=True)
    home.write_text("[serve]\nport = 1\n")
    assert settings.find_file() == home
    Path("auxtap.toml").write_text("[serve]\nport = 2\n")
    assert settings.find_file() == Path("auxtap.toml")
    named = tmp_path / "other.toml"
    named.write_text("[serve]\nport = 3\n")
    monkeypatch.setenv("AUXTAP_CONFIG", str(named))
    assert shown(capsys)["serve", "--port"] == (3, f"file {named}")
    monkeypatch.setenv("AUXTAP_CONFIG", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="names no file"):
        settings.find_file()


def test_the_cache(tmp_path, monkeypatch, capsys) -> None:
    Path("auxtap.toml").write_text(f'cache = "{tmp_path}/kept"\n')
    assert shown(capsys)["", "cache"] == (f"{tmp_path}/kept", "file auxtap.toml")
    assert cache_layout().root == tmp_path / "kept"
    monkeypatch.setenv("AUXTAP_CACHE", str(tmp_path / "named"))
    assert shown(capsys)["", "cache"] == (f"{tmp_path}/named", "environment AUXTAP_CACHE")
    assert cache_layout().root == tmp_path / "named"


def test_commands_of_groups(capsys) -> None:
    Path("auxtap.toml").write_text('[engine.setup]\ntorch-index = "https://torch.example"\nrebuild = true\n')
    rows = shown(capsys)
    assert rows["engine setup", "--torch-index"] == ("https://torch.example", "file auxtap.toml")
    assert rows["engine setup", "--rebuild"] == (True, "file auxtap.toml")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[serve]\nprt = 1\n", "serve.prt is not known", "did you mean port?"),
        ("[sreve]\nport = 1\n", "sreve is not known", "did you mean serve?"),
        ("cahce = 'x'\n", "cahce is not known", "did you mean cache?"),
        ("[serve]\njson = true\n", "serve.json is not known", None),
        ("[serve]\nport = 'many'\n", "serve.port: 'many' is not a valid int", None),
        ("[serve]\nport = 70000\n", "serve.port: 70000 is not in the range", None),
        ("[serve]\nport = [1]\n", "serve.port is one value, not [1]", None),
        ("[serve]\ncpu = 'yes'\n", "serve.cpu is true or false, not 'yes'", None),
        ("serve = 1\n", "serve is a command: its options stand in the table [serve]", None),
        ("cache = ''\n", "cache is no folder", None),
        ("[serve\n", "cannot be read: ", "auxtap config --help tells what it may hold"),
    ],
)
def test_a_wrong_file_is_refused_by_every_command_but_help(capsys, text, message, hint) -> None:
    Path("auxtap.toml").write_text(text)
    assert cli.run(["doctor"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: auxtap.toml") and message in printed
    assert hint is None or f"hint: {hint}" in printed
    assert cli.run(["serve", "--help"]) == 0
    assert cli.run(["--version"]) == 0


def test_repeated_options_and_switches(tmp_path, monkeypatch, capsys) -> None:
    """`extract` says which of the servers that it was given lacks a spool."""
    (tmp_path / "data.jsonl").write_text('{"id": "a", "input_ids": [1]}\n')
    Path("auxtap.toml").write_text(
        '[extract]\nserver = ["http://127.0.0.1:1", "http://127.0.0.1:2"]\nspool = ["a", "b", "c"]\n'
    )
    arguments = ["extract", "data.jsonl", "--out", "store"]
    assert cli.run(arguments) == 2
    from_file = capsys.readouterr().err
    assert "2" in from_file and "3" in from_file
    Path("auxtap.toml").unlink()
    monkeypatch.setenv("AUXTAP_EXTRACT_SERVER", "http://127.0.0.1:1 http://127.0.0.1:2")
    monkeypatch.setenv("AUXTAP_EXTRACT_SPOOL", "a:b:c")
    assert cli.run(arguments) == 2
    assert capsys.readouterr().err == from_file
    monkeypatch.setenv("AUXTAP_CONFIG_ALL", "1")
    assert cli.run(["config", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["settings"]) > 100
    monkeypatch.setenv("AUXTAP_CONFIG_ALL", "0")
    assert cli.run(["config", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["settings"]) == 4


def test_a_command_that_there_is_not(capsys) -> None:
    assert cli.run(["config", "sreve"]) == 2
    assert "no command 'sreve'" in capsys.readouterr().err


def test_variables_do_not_collide() -> None:
    variables = [place.variable for place in settings.options(GROUP)]
    assert len(set(variables)) == len(variables) > 100
    modules = (protocol, profile, settings)
    taken = {value for module in modules for name, value in vars(module).items() if name.startswith("ENV_")}
    assert not taken & set(variables)


def test_the_table_is_for_people_too(capsys) -> None:
    Path("auxtap.toml").write_text("[serve]\ncpu = true\n")
    assert cli.run(["config"]) == 0
    captured = capsys.readouterr()
    assert "--cpu" in captured.out and "yes" in captured.out
    assert captured.err == "configuration file: auxtap.toml\n"
