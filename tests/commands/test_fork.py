"""A vendor's own names, told in auxtap.toml: traced without a change of auxtap; a bad file says its line."""

import json
from pathlib import Path

import pytest
import typer.main

from auxtap import cli
from auxtap.commands import settings
from auxtap.commands.fork import use_fork
from auxtap.commands.settings import read_settings
from auxtap.core.errors import UsageError

GROUP = typer.main.get_command(cli.app)
FORK = """
class VendorModel(nn.Module):
    def __init__(self):
        self.tapped_blocks = []

    def forward(self, hidden_states, residual, forward_batch):
        tapped_states = []
        for i in range(self.start_layer, self.end_layer):
            if i in self.tapped_blocks:
                tapped_states.append(hidden_states + residual)
            hidden_states, residual = self.layers[i](hidden_states, residual)
        return hidden_states, tapped_states


class VendorForCausalLM(nn.Module):
    def __init__(self):
        self.model = VendorModel()

    def choose_tapped(self, ids):
        self.model.tapped_blocks = [v + 1 for v in ids]
"""
RULES = """
[[fork.capture]]
accumulators = ["tapped_states"]
layer_lists = ["tapped_blocks"]

[[fork.capture]]
setters = ["choose_tapped"]
"""


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AUXTAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(settings.ENV_FILE, raising=False)
    yield
    use_fork({})


def roles(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert cli.run(["trace", "fork", "--folder", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    return {
        f"{site['role']} {site['line']}": site["name"] for file in report["files"] for site in file["capture_sites"]
    }


def test_names_of_a_fork_are_traced_and_what_was_kept_without_them_is_not_taken(tmp_path, capsys) -> None:
    (tmp_path / "fork").mkdir()
    (tmp_path / "fork/vendor.py").write_text(FORK)
    assert roles(capsys) == {}
    Path("auxtap.toml").write_text(RULES)
    found = roles(capsys)
    assert found == {
        "layers_init 4": "tapped_blocks",
        "accumulator_init 7": "tapped_states",
        "layer_test 9": "tapped_blocks",
        "append 10": "tapped_states",
        "return_pair 12": "tapped_states",
        "setter 19": "choose_tapped",
        "layers_set 20": "tapped_blocks",
    }
    Path("auxtap.toml").unlink()
    assert roles(capsys) == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[fork.capture]]\naccumulator = ['states']\n", r":2: fork.capture.accumulator is not known"),
        ("[[fork.capture]]\nsetters = ['set_it']\n\n[[fork.capture]]\n\nsettrs = ['a']\n", r":6: fork.capture.settrs"),
        ("[[fork.capture]]\nsetters = 'set_it'\n", r":2: fork.capture.setters is a list of names, not 'set_it'"),
        ("[[fork.capture]]\nsetters = []\n", r":2: .*is a list of names"),
        ("[[fork.capture]]\nsetters = [3]\n", r":2: .*is a list of names"),
        ("[[fork.capture]]\nsetters = ['a b']\n", r":2: .*is a list of names"),
        ("[[fork.capture]]\nsetters = ['x']\n", r":2: x is too short"),
        ("[[fork.capture]]\nsetters = ['twice']\nflags = ['twice']\n", r":3: twice is given as two things"),
        ("\n[[fork.capture]]\n", r":2: fork.capture holds an empty table"),
        ("fork = 3\n", r":1: fork holds no list of tables"),
        ("[fork]\ncapture = 3\n", r":1: fork holds no list of tables"),
        ("[fork]\nother = 3\n", r":2: fork.other is not known"),
        ("[[fork.capture]\n", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_says_where(text: str, problem: str, capsys) -> None:
    path = Path("auxtap.toml")
    path.write_text(text)
    with pytest.raises(UsageError, match=problem):
        read_settings(path, GROUP)
    assert cli.run(["trace", "pypi:0.5.9"]) == 2
    assert "Traceback" not in capsys.readouterr().err
