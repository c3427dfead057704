"""What is released: sdist and wheel hold the same, and work in an environment that has nothing else."""

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import auxtap
from auxtap.commands.menu import MENU

pytestmark = [pytest.mark.network, pytest.mark.timeout(900), pytest.mark.slow]
ROOT = Path(__file__).resolve().parent.parent
BUILD = """
import sys
from setuptools import build_meta
print(build_meta.build_sdist(sys.argv[1]) if sys.argv[2] == "sdist" else build_meta.build_wheel(sys.argv[1]))
"""


@dataclass(frozen=True)
class Release:
    """The two files of a release, and the Python of an empty environment into which the wheel was installed."""

    sdist: Path
    wheel: Path
    python: Path


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_environment(folder: Path) -> Path:
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    return folder / "bin/python"


def build(python: Path, tree: Path, out: Path, kind: str) -> Path:
    return out / run(python, "-c", BUILD, out, kind, cwd=tree).split()[-1]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Built from what git tracks, so that nothing gets in that is only lying about."""
    folder = tmp_path_factory.mktemp("release")
    tree, out = folder / "tree", folder / "dist"
    out.mkdir()
    for name in run("git", "ls-files", cwd=ROOT).splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    builder = make_environment(folder / "builder")
    run(builder, "-m", "pip", "install", "--quiet", "setuptools>=77", cwd=folder)
    sdist = build(builder, tree, out, "sdist")
    wheel = build(builder, tree, out, "wheel")
    python = make_environment(folder / "empty")
    constraints = ROOT / "constraints.txt"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel, cwd=folder)
    unpacked = folder / "unpacked"
    with tarfile.open(sdist) as tar:
        tar.extractall(unpacked, filter="data")
    again = folder / "again"
    again.mkdir()
    build(builder, next(unpacked.iterdir()), again, "wheel")
    return Release(sdist, wheel, python)


def contents(wheel: Path) -> Mapping[str, str]:
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if not name.endswith("/RECORD")]
        return {name: hashlib.sha256(file.read(name)).hexdigest() for name in names}


def test_the_wheel_of_the_sdist_is_the_wheel(release: Release) -> None:
    (again,) = (release.wheel.parent.parent / "again").glob("*.whl")
    assert again.name == release.wheel.name == f"auxtap-{auxtap.__version__}-py3-none-any.whl"
    assert contents(again) == contents(release.wheel)


def test_the_metadata_says_what_it_is(release: Release) -> None:
    with zipfile.ZipFile(release.wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith("/METADATA"))
        metadata = file.read(name).decode()
    assert f"\nVersion: {auxtap.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata and "\nRequires-Python: >=3.11\n" in metadata
    for extra in ("plugin", "pt", "tokenizer", "server", "remote", "metrics"):
        assert f"\nProvides-Extra: {extra}\n" in metadata


def test_the_installed_tool_works(release: Release, tmp_path: Path) -> None:
    tool = release.python.with_name("auxtap")
    assert run(tool, "--version", cwd=tmp_path) == f"auxtap {auxtap.__version__}\n"
    printed = run(tool, "--help", cwd=tmp_path)
    assert all(re.search(rf"^  {name} ", printed, re.MULTILINE) for name in MENU)
    for name in MENU:
        assert "Usage: " in run(tool, name, "--help", cwd=tmp_path)
    record = json.loads(run(tool, "patch", "pypi:0.5.9", "--out", tmp_path / "out", "--json", cwd=tmp_path))
    committed = json.loads((ROOT / "generated/sglang-0.5.9/manifest.json").read_bytes())
    assert record["patch_sha256"] == committed["patch_sha256"]


def test_every_module_can_be_imported(release: Release, tmp_path: Path) -> None:
    """A module that needs an extra imports it inside a function; the tap needs torch, and says so by its import."""
    program = (
        "import auxtap, importlib, pkgutil\n"
        "skipped = ('auxtap.tap.', 'auxtap.serving.cpu_shim.', 'auxtap.verification.scripts.', 'auxtap.node.agent.')\n"
        "found = [module.name for module in pkgutil.walk_packages(auxtap.__path__, 'auxtap.')]\n"
        "names = [name for name in found if not name.startswith(skipped)]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(len(names))\n"
    )
    assert int(run(release.python, "-c", program, cwd=tmp_path)) > 150


def test_the_plugin_is_announced_and_finds_its_patches(release: Release, tmp_path: Path) -> None:
    program = (
        "from importlib.metadata import entry_points\n"
        "(point,) = entry_points(group='sglang.srt.plugins')\n"
        "point.load()()\n"
        "from auxtap.serving.plugin.patches import COMMITTED\n"
        "print(point.name, len(list(COMMITTED.glob('sglang-*/inserted.patch'))))\n"
    )
    assert run(release.python, "-c", program, cwd=tmp_path) == "auxtap 66\n"


def test_the_changelog_begins_with_this_version() -> None:
    (first, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first == auxtap.__version__
