"""The plugin in a fresh interpreter: silent when switched off, in place when on, loud when nothing fits."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from auxtap.core.cache import CacheLayout
from auxtap.core.files import sha256_bytes
from auxtap.serving.plugin import importing
from auxtap.serving.plugin.patches import COMMITTED, PluginRefusedError, find_fitting_patch
from auxtap.serving.plugin_home import make_plugin_home
from auxtap.tests.serving.plugin.conftest import LAYERS, PluginCase

# Finds the entry point as SGLang does and calls it, before or after the module to be changed is imported.
PROGRAM = """
import importlib.metadata, importlib.util, json, os, sys
(point,) = importlib.metadata.entry_points(group="sglang.srt.plugins")
early = os.environ.pop("TEST_EARLY", None)
if early:
    import sglang.srt.runner
point.load()()
import sglang.srt.runner
print(json.dumps({
    "point": [point.name, point.value],
    "ran": sglang.srt.runner.run(3),
    "tap": importlib.util.find_spec("sglang.srt.auxtap") is not None,
    "environment": {name: value for name, value in os.environ.items() if name.startswith("AUXTAP_")},
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
}))
"""
RUNNER = "import os\n\n\ndef run(n):\n    seen = [n]\n    return seen\n"
GATE_LINE = "from sglang.srt.auxtap.gate import tap as _auxtap\n"
STATEMENT = "    if _auxtap is not None:\n        _auxtap.tap(seen)\n"
TAP = {
    "__init__.py": '"""The tap."""\n',
    "gate.py": "from . import engine as tap\n",
    "engine.py": "def tap(seen):\n    seen.append('tapped')\n",
}


def run(home: Path, tree: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AUXTAP_")}
    path = os.pathsep.join([str(home), str(tree / "python")])
    # -S: none of the tool's own dependencies can be found.
    return subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM],
        env={**kept, "PYTHONPATH": path, **environment},
        cwd=home,
        capture_output=True,
        text=True,
    )


@dataclass(frozen=True)
class SmallTree:
    """A package called sglang with one module, and a patch for it."""

    root: Path
    patch: Path

    @property
    def switched_on(self) -> dict[str, str]:
        return {"AUXTAP_SPOOL": "/spool", "AUXTAP_PATCH": str(self.patch)}


@pytest.fixture
def small(tmp_path: Path) -> SmallTree:
    srt = tmp_path / "small/python/sglang/srt"
    srt.mkdir(parents=True)
    (srt.parent / "__init__.py").touch()
    (srt / "runner.py").write_text(RUNNER)
    after = RUNNER.replace("import os\n", "import os\n" + GATE_LINE).replace("    return", STATEMENT + "    return")
    name = "python/sglang/srt/runner.py"
    patch = f"diff --git a/{name} b/{name}\nindex 1..2 100644\n--- a/{name}\n+++ b/{name}\n"
    patch += f"@@ -1,0 +2 @@\n+{GATE_LINE}@@ -5,0 +7,2 @@\n"
    patch += "".join(f"+{line}" for line in STATEMENT.splitlines(keepends=True))
    for file, text in TAP.items():
        name = f"python/sglang/srt/auxtap/{file}"
        lines = text.splitlines(keepends=True)
        patch += f"diff --git a/{name} b/{name}\nnew file mode 100644\nindex 0..1\n--- /dev/null\n+++ b/{name}\n"
        patch += f"@@ -0,0 +1{f',{len(lines)}' if len(lines) > 1 else ''} @@\n" + "".join(f"+{line}" for line in lines)
    digests = [{"path": "python/sglang/srt/runner.py", "sha256_before": sha(RUNNER), "sha256_after": sha(after)}]
    folder = tmp_path / "small/patch"
    folder.mkdir()
    (folder / "capture.patch").write_text(patch)
    record = {
        "release": "1.2",
        "patch_sha256": sha(patch),
        "source_digest": "s",
        "files": digests,
        "new_files": [{"path": f"python/sglang/srt/auxtap/{file}", "sha256": sha(text)} for file, text in TAP.items()],
        "server_flags": [],
        "default_layers": {"capture_index": [1]},
    }
    (folder / "manifest.json").write_text(json.dumps(record))
    return SmallTree(tmp_path / "small", folder)


def sha(text: str) -> str:
    return sha256_bytes(text.encode())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_plugin_home(CacheLayout(tmp_path / "cache"))


@pytest.fixture
def bare_tree(plugin_case: PluginCase, tmp_path: Path) -> Path:
    """A copy of the released tree, to be damaged."""
    tree = tmp_path / "tree"
    subprocess.run(["cp", "-r", str(plugin_case.tree), str(tree)], check=True)
    return tree


def test_switched_off_it_does_nothing(home: Path, small: SmallTree) -> None:
    done = run(home, small.root, {"AUXTAP_PATCH": str(small.patch)})
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["point"] == ["auxtap", "auxtap.serving.plugin:load"]
    assert (said["ran"], said["tap"], list(said["environment"])) == ([3], False, ["AUXTAP_PATCH"])


@pytest.mark.parametrize("early", ["", "1"])
def test_switched_on_it_changes_what_the_patch_changes(home: Path, small: SmallTree, early: str) -> None:
    done = run(home, small.root, {**small.switched_on, "AUXTAP_RELEASE": "a lie", "TEST_EARLY": early})
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["ran"], said["tap"]) == ([3, "tapped"], True)
    environment = said["environment"]
    assert (environment["AUXTAP_WAY"], environment["AUXTAP_RELEASE"]) == ("plugin", "1.2")
    assert environment["AUXTAP_PATCH_DIGEST"] == sha((small.patch / "capture.patch").read_text())
    assert not {"torch", "libcst", "typer", "rich", "numpy", "git"} & set(said["modules"])
    assert not (small.root / "python/sglang/srt/auxtap").exists()


@pytest.mark.parametrize("early", ["", "1"])
def test_what_does_not_fit_ends_the_process(home: Path, small: SmallTree, early: str) -> None:
    """SGLang logs an exception of a plugin and goes on; it must not go on here."""
    runner = small.root / "python/sglang/srt/runner.py"
    runner.write_text(runner.read_text() + "# changed\n")
    done = run(home, small.root, {**small.switched_on, "TEST_EARLY": early})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("auxtap: refused: the patch ") and "runner.py is another file" in done.stderr


def test_a_patched_tree_is_left_to_its_patch(home: Path, small: SmallTree) -> None:
    tap = small.root / "python/sglang/srt/auxtap"
    tap.mkdir()
    for name, text in TAP.items():
        (tap / name).write_text(text)
    done = run(home, small.root, small.switched_on)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["ran"] == [3] and "AUXTAP_WAY" not in said["environment"]


@pytest.mark.slow
@pytest.mark.network
def test_the_patch_is_found_by_bytes(plugin_case: PluginCase) -> None:
    fitting = find_fitting_patch(plugin_case.package, plugin_case.patch_folder)
    assert fitting.release == "0.5.14"
    assert fitting.patch_digest == plugin_case.patch_set.digest
    assert fitting.source_digest == plugin_case.source.digest
    for change in plugin_case.patch_set.changes:
        assert fitting.sources[change.path].after == change.after
    assert {str(path) for path in fitting.new_files} == {
        str(file.path) for file in plugin_case.patch_set.plan.new_files
    }


@pytest.mark.slow
@pytest.mark.network
def test_a_committed_patch_fits_its_release(plugin_case: PluginCase) -> None:
    fitting = find_fitting_patch(plugin_case.package)
    manifest = json.loads((COMMITTED / "sglang-0.5.14/manifest.json").read_bytes())
    assert (fitting.release, fitting.patch_digest) == ("0.5.14", manifest["patch_sha256"])
    assert fitting.source_digest == manifest["source_digest"]


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("damage", ["patch", "manifest", "upstream", "elsewhere"])
def test_what_does_not_fit_is_refused(plugin_case: PluginCase, bare_tree: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "patch"
    subprocess.run(["cp", "-r", str(plugin_case.patch_folder), str(folder)], check=True)
    package = bare_tree / "python/sglang"
    if damage == "patch":
        (folder / "capture.patch").write_bytes(
            (folder / "capture.patch").read_bytes().replace(b"_auxtap.arm", b"x.arm")
        )
        match = "is not the one of the manifest beside it"
    elif damage == "manifest":
        (folder / "manifest.json").write_text("{}")
        match = "manifest.json cannot be read"
    elif damage == "upstream":
        runner = package / "srt/model_executor/model_runner.py"
        runner.write_bytes(runner.read_bytes() + b"# one more line\n")
        match = "model_runner.py is another file"
    else:
        (package / "version.py").write_text("__version__ = 'ours'\n")
        assert find_fitting_patch(package, folder).source_digest != plugin_case.source.digest
        return
    with pytest.raises(PluginRefusedError, match=match):
        find_fitting_patch(package, folder)


@pytest.mark.network
def test_no_committed_patch_is_no_guess(bare_tree: Path) -> None:
    batches = bare_tree / "python/sglang/srt/model_executor/forward_batch_info.py"
    batches.write_bytes(b"\n" + batches.read_bytes())
    with pytest.raises(PluginRefusedError, match="no committed patch is for the SGLang in"):
        find_fitting_patch(bare_tree / "python/sglang")


def test_names_are_those_of_the_tap() -> None:
    assert importing.TAP_PACKAGE == "sglang.srt.auxtap"
    assert LAYERS == (2, 3, 6)
