"""`patch`, `verify`, `apply` and `revert` as a person runs them, on a checkout of the shaped tree."""

import json
from pathlib import Path

import pytest

from auxtap import cli
from auxtap.core.errors import ExitCode
from auxtap.core.source_tree import MODELS_ROOT
from auxtap.rewriters.patch import named_models
from auxtap.tests.shaped import LLAMA, RUNNER, fixture, git, make_checkout, shaped_files


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUXTAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    make_checkout(tmp_path / "sgl")
    return tmp_path


def test_patch_writes_proves_and_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["patch", "sgl"]) == ExitCode.DONE
    shown = capsys.readouterr()
    for text in ("inserted lines     15", "removed lines      0", "checks passed      15 of 15", "3, 31, 59"):
        assert text in shown.out
    assert "\x1b[" not in shown.out
    first = {path.name: path.read_bytes() for path in (place / "generated/sglang-0.5.9").iterdir()}
    assert set(first) == {"capture.patch", "manifest.json"}
    assert json.loads(first["manifest.json"])["checks"]
    assert cli.run(["patch", "sgl@v0.5.9"]) == ExitCode.DONE
    assert {path.name: path.read_bytes() for path in (place / "generated/sglang-0.5.9").iterdir()} == first


def test_patch_as_json_and_as_a_diff(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["patch", "sgl", "--layers", "5,2", "--model", "llama", "--out", "o", "--json"]) == ExitCode.DONE
    record = json.loads(capsys.readouterr().out)
    assert record["layers"] == [2, 5] and record["models"] == ["llama"]
    assert (record["inserted_lines"], record["removed_lines"], len(record["files"])) == (12, 0, 4)
    assert record["proof"]["holds"] and Path(record["patch"]).is_file()
    assert cli.run(["patch", "sgl", "--show"]) == ExitCode.DONE
    assert "\n+        if _auxtap is not None:\n+            _auxtap.arm(self)\n" in capsys.readouterr().out


def test_patch_writes_nothing_when_an_anchor_is_missing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_checkout(place / "odd", {**shaped_files(), RUNNER: fixture("arm", "elsewhere.refused")})
    assert cli.run(["patch", "odd"]) == ExitCode.PATCH
    shown = capsys.readouterr()
    assert shown.out == "" and f"{RUNNER} (ModelRunner.initialize)" in shown.err and "hint:" in shown.err
    assert not (place / "generated").exists()


def test_patch_writes_nothing_when_a_check_says_no(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sometimes = shaped_files()[RUNNER].replace(b"self.load(args)\n", b"self.load(args)\n        del self\n")
    make_checkout(place / "odd", {**shaped_files(), RUNNER: sometimes})
    assert cli.run(["patch", "odd"]) == ExitCode.CHECK_FAILED
    shown = capsys.readouterr()
    assert "reads self, which may be unbound" in shown.out and "names bound" in shown.err
    assert not (place / "generated").exists()


REFUSING = b"""class OddModel:
    def forward(self, hidden_states, residual, forward_batch):
        aux_hidden_states = []
        for i in range(self.start_layer, self.end_layer):
            if i + 1 in self.layers_to_capture:
                aux_hidden_states.append(hidden_states * 2)
            hidden_states, residual = self.layers[i](hidden_states, residual)
        return hidden_states, aux_hidden_states


class OddForCausalLM:
    def __init__(self):
        self.model = OddModel()
        self.capture_aux_hidden_states = False


EntryClass = OddForCausalLM
"""


@pytest.mark.parametrize(
    ("command", "consequence"),
    [
        (["patch", "odd"], "; nothing was written"),
        (["apply", "odd", "--worktree", "wt"], "; nothing was applied"),
        (["verify", "odd"], ""),
    ],
)
def test_a_named_model_that_the_patch_refuses_ends_the_command(
    command: list[str], consequence: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    make_checkout(place / "odd", {**shaped_files(), MODELS_ROOT / "odd.py": REFUSING})
    assert cli.run([*command, "--model", "llama,odd"]) == ExitCode.PATCH
    shown = capsys.readouterr()
    assert (
        f"nothing of odd can be captured in SGLang 0.5.9{consequence}: OddForCausalLM (models/odd.py:6): " in shown.err
    )
    assert shown.out == "" and not (place / "generated").exists() and not (place / "wt").exists()
    monkeypatch.setenv(f"AUXTAP_{command[0].upper()}_MODEL", "odd")
    assert cli.run(command) == ExitCode.PATCH


def test_a_written_patch_of_a_named_model_that_is_refused_is_refused_when_it_is_verified(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkout(place / "odd", {**shaped_files(), MODELS_ROOT / "odd.py": REFUSING})
    with monkeypatch.context() as without:
        without.setattr(named_models, "require_captured", lambda *given: None)
        assert cli.run(["patch", "odd", "--model", "odd"]) == ExitCode.DONE
    assert "a server with this patch refuses OddForCausalLM (models/odd.py:6)" in capsys.readouterr().err
    assert cli.run(["verify", "generated/sglang-0.5.9", "--source", "odd"]) == ExitCode.PATCH
    assert "nothing of odd can be captured" in capsys.readouterr().err


def test_a_default_model_that_is_refused_is_told_and_left_out(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = REFUSING.replace(b"Odd", b"Llama")
    make_checkout(place / "odd", {**shaped_files(), LLAMA: odd})
    assert cli.run(["patch", "odd", "--json"]) == ExitCode.DONE
    shown = capsys.readouterr()
    assert "a server with this patch refuses LlamaForCausalLM (models/llama.py:6)" in shown.err
    assert [each["name"] for each in json.loads(shown.out)["refused"]] == ["LlamaForCausalLM"]
    assert cli.run(["patch", "odd", "--model", "llama"]) == ExitCode.PATCH


def test_a_model_that_there_is_not_has_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    for name, meant in (("lama", "llama"), ("deepsek_v2", "deepseek_v2"), ("seek", "deepseek"), ("qqqq", "")):
        assert cli.run(["patch", "sgl", "--model", name]) == ExitCode.USAGE
        shown = capsys.readouterr().err
        assert f"unknown model {name}" in shown and ("did you mean" in shown) is bool(meant) and meant in shown


@pytest.mark.parametrize("inner", ["", "/python"])
def test_a_worktree_is_never_made_of_files_that_were_not_committed(
    inner: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (place / "sgl" / RUNNER).open("a") as runner:
        runner.write("# mine\n")
    assert cli.run(["apply", f"sgl{inner}", "--worktree", "wt"]) == ExitCode.WORKTREE
    shown = capsys.readouterr().err
    assert f"1 file differs from commit {git(place / 'sgl', 'rev-parse', 'HEAD')[:12]}: {RUNNER}" in shown
    assert "sgl@HEAD" in shown and not (place / "wt").exists()
    assert cli.run(["apply", "sgl@HEAD", "--worktree", "wt"]) == ExitCode.DONE
    assert "# mine" not in (place / "wt" / RUNNER).read_text()
    # Its patch is for the files on disk all the same, and is proved on them.
    assert cli.run(["patch", f"sgl{inner}"]) == ExitCode.DONE
    assert cli.run(["verify", "generated/sglang-0.5.9", "--source", "sgl/python"]) == ExitCode.DONE
    assert cli.run(["verify", "generated/sglang-0.5.9", "--source", "sgl@HEAD"]) == ExitCode.CHECK_FAILED


def test_files_that_are_programs_are_patched_and_stay_programs(place: Path) -> None:
    for path in (LLAMA, RUNNER):
        (place / "sgl" / path).chmod(0o755)
    git(place / "sgl", "commit", "--quiet", "--all", "--message=Programs")
    assert cli.run(["patch", "sgl", "--model", "all"]) == ExitCode.DONE
    assert cli.run(["verify", "generated/sglang-0.5.9", "--source", "sgl"]) == ExitCode.DONE
    assert cli.run(["apply", "sgl", "--model", "all", "--worktree", "wt"]) == ExitCode.DONE
    modes = git(place / "wt", "ls-files", "--stage", str(LLAMA), str(RUNNER)).splitlines()
    assert [line.split()[0] for line in modes] == ["100755", "100755"]
    # The same patch fits a tree in which they are none: a mode is no part of it.
    git(place / "sgl", "checkout", "--quiet", "v0.5.9")
    git(place / "sgl", "apply", "--unidiff-zero", str(place / "generated/sglang-0.5.9/capture.patch"))
    assert not (place / "sgl" / LLAMA).stat().st_mode & 0o111


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["patch", "nowhere"], ExitCode.SOURCE),
        (["patch", "pypi:9.9.9"], ExitCode.SOURCE),
        (["patch", "sgl", "--model", "nope"], ExitCode.USAGE),
        (["patch", "sgl", "--layers", "0"], ExitCode.USAGE),
        (["patch"], ExitCode.USAGE),
        (["verify", "nowhere"], ExitCode.SOURCE),
        (["verify", "sgl", "--source", "sgl"], ExitCode.USAGE),
        (["apply", "sgl"], ExitCode.USAGE),
        (["revert", "nowhere"], ExitCode.WORKTREE),
        (["revert", "sgl"], ExitCode.WORKTREE),
    ],
)
def test_refuses(arguments: list[str], code: ExitCode, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == code
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("error: ") and "Traceback" not in shown.err


@pytest.mark.slow
def test_verify_a_source_and_a_patch(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["verify", "sgl", "--json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["holds"]
    assert cli.run(["patch", "sgl"]) == ExitCode.DONE
    for target in ("generated/sglang-0.5.9", "generated/sglang-0.5.9/capture.patch"):
        assert cli.run(["verify", target, "--source", "sgl"]) == ExitCode.DONE
    assert cli.run(["verify", "generated/sglang-0.5.9"]) == ExitCode.USAGE
    assert "--source" in capsys.readouterr().err


@pytest.mark.slow
def test_verify_says_no_to_a_changed_patch(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["patch", "sgl"]) == ExitCode.DONE
    patch = place / "generated/sglang-0.5.9/capture.patch"
    patch.write_bytes(patch.read_bytes().replace(b"_auxtap.arm(self)", b"_auxtap.arm(none)"))
    capsys.readouterr()
    assert cli.run(["verify", str(patch), "--source", "sgl"]) == ExitCode.CHECK_FAILED
    shown = capsys.readouterr()
    assert "NO" in shown.out and "identity" in shown.err and "names bound" in shown.err


def test_apply_and_revert(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refs = git(place / "sgl", "for-each-ref")
    assert cli.run(["apply", "sgl", "--worktree", "wt", "--json"]) == ExitCode.DONE
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert record["worktree"] == str(place / "wt") and "auxtap serve --worktree" in shown.err
    assert git(place / "wt", "rev-parse", "HEAD") == record["commit"]
    assert cli.run(["apply", "sgl", "--worktree", "wt"]) == ExitCode.WORKTREE
    (place / "wt/mine.txt").write_text("mine\n")
    assert cli.run(["revert", "wt"]) == ExitCode.WORKTREE
    assert cli.run(["revert", "wt", "--force"]) == ExitCode.DONE
    assert not (place / "wt").exists() and git(place / "sgl", "for-each-ref") == refs


def test_a_patched_tree_is_not_patched_again(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["apply", "sgl", "--worktree", "wt"]) == ExitCode.DONE
    assert cli.run(["patch", "wt"]) == ExitCode.PATCH
    assert "is patched already" in capsys.readouterr().err
    assert not (place / "generated").exists()
