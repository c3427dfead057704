"""`auxtap trace` as a person runs it, on a git checkout of the fixture tree."""

import json
import os
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

GIT_IDENTITY = {
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@example.invalid",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@example.invalid",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}


@pytest.fixture
def checkout(tmp_path: Path, fixture_files: dict[PurePosixPath, bytes]) -> Path:
    root = tmp_path / "checkout"
    for path, data in fixture_files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run(["git", "-C", str(root), *arguments], check=True, env={**inherited, **GIT_IDENTITY})
    return root


def run(*arguments: str, columns: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    environment.pop("COLUMNS", None)
    if columns is not None:
        environment["COLUMNS"] = columns
    command = [sys.executable, "-m", "auxtap.cli", "trace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [None, "80", "200"])
def test_report(checkout: Path, columns: str | None) -> None:
    result = run(str(checkout), "--model", "plain,picture", "--num-layers", "61", columns=columns)
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout
    for piece in (
        "aux_hidden_states.append(hidden_states + residual)",
        "stage_exit",
        "PlainModel.forward",
        "hidden_states[58]",
        "PictureForConditionalGeneration has no setter",
    ):
        assert piece in result.stdout
    titles = [line.split(":")[0] for line in result.stdout.split("\n") if line[:1].isupper() and ":" in line]
    assert [t for t in titles if t in ("Selection", "Capture", "Exit", "Hand-over", "Consumer")] == [
        "Selection",
        "Capture",
        "Exit",
        "Hand-over",
        "Consumer",
    ]
    if columns == "80":
        assert max(map(len, result.stdout.split("\n")[1:])) <= 80


@pytest.mark.slow
def test_a_narrow_terminal_loses_nothing(checkout: Path) -> None:
    """The columns of a row go below each other rather than out of sight."""
    wide = run(str(checkout), "--model", "plain,picture", columns="200").stdout
    narrow = run(str(checkout), "--model", "plain,picture", columns="40").stdout
    assert max(len(line) for line in narrow.split("\n")[1:]) <= 40

    def letters(text: str) -> list[str]:
        return sorted(character for character in text if character.isalnum())

    assert letters(narrow) == letters(wide)


@pytest.mark.slow
def test_the_default_models_are_those_that_the_release_has(checkout: Path) -> None:
    """Of the models that nobody named, one that a release lacks is left out; none at all is a mistake."""
    refused = run(str(checkout))
    assert (refused.returncode, "no model named 'deepseek'" in refused.stderr) == (2, True)
    plain = checkout / "python/sglang/srt/models/plain.py"
    # A new file counts before it is committed: a checkout is what is on disk, and its commit is the commit.
    (plain.parent / "kimi_k25.py").write_bytes(plain.read_bytes())
    refused = run(f"{checkout}@HEAD")
    assert (refused.returncode, "no model named 'deepseek'" in refused.stderr) == (2, True)
    result = run(str(checkout))
    assert result.returncode == 0, result.stderr
    assert "models/kimi_k25.py" in result.stdout and "and 1 file as on disk" in result.stdout


def commit_all(checkout: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    commit = ["git", "-C", str(checkout), "commit", "-q", "-a", "-m", "two"]
    subprocess.run(commit, check=True, env={**inherited, **GIT_IDENTITY})


@pytest.mark.slow
def test_what_is_appended_is_said_where_the_line_breaks_off(checkout: Path) -> None:
    path = checkout / "python/sglang/srt/models/plain.py"
    text = path.read_text()
    wrapped = "aux_hidden_states.append(\n                    hidden_states + residual\n                )"
    assert "aux_hidden_states.append(hidden_states + residual)" in text
    path.write_text(text.replace("aux_hidden_states.append(hidden_states + residual)", wrapped))
    commit_all(checkout)
    lines = run(str(checkout), "--model", "plain", "--role", "append").stdout.split("\n")
    position = next(number for number, line in enumerate(lines) if line.endswith("aux_hidden_states.append("))
    assert "hidden_states + residual; input of block i" in lines[position + 1]


@pytest.mark.slow
def test_symbolic_layers_keep_their_brackets(checkout: Path) -> None:
    assert "hidden_states[i]" in run(str(checkout), "--model", "plain").stdout


@pytest.mark.slow
def test_json(checkout: Path) -> None:
    result = run(str(checkout), "--model", "plain", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert set(report["files"][0]) == {"release", "file", "capture_sites", "stage_branches"}
    assert report["layer_rules"][0]["offset"] == 1
    assert report["n_unknown"] == 0


@pytest.mark.slow
def test_unknown_sites_end_with_1(checkout: Path) -> None:
    path = checkout / "python/sglang/srt/models/plain.py"
    path.write_text(path.read_text() + "\n\ndef look(model):\n    print(model.layers_to_capture[0])\n")
    commit_all(checkout)
    result = run(f"{checkout}@HEAD", "--model", "plain")
    assert result.returncode == 1
    assert "1 site unclassified" in result.stderr
    assert "models/plain.py (look)" in result.stderr
    assert "print(model.layers_to_capture[0])" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "SOURCE is missing"),
        (["--explain", "stage_exti"], 2, "stage_exit"),
        (["{checkout}", "--model", "plane"], 2, "plain"),
        (["{checkout}", "--model", ","], 2, "--model names nothing"),
        (["{checkout}", "--role", "append", "--hazards-only"], 2, "leave one of the two out"),
        (["--explain"], 2, "requires an argument"),
        (["{checkout}", "--file", "models/none.py"], 2, "no file models/none.py"),
        (["{checkout}/nothing"], 3, "nothing"),
    ],
)
def test_bad_input(checkout: Path, arguments: list[str], code: int, message: str) -> None:
    result = run(*(argument.replace("{checkout}", str(checkout)) for argument in arguments))
    assert result.returncode == code
    assert message in result.stderr
    assert "hint:" in result.stderr
    assert "Traceback" not in result.stderr


def test_explain() -> None:
    result = run("--explain", "stage_exit")
    assert result.returncode == 0
    assert result.stdout.startswith("stage_exit (stage branch, Exit: what leaves the backbone): A stage that is not")
