"""The repository root is the package: what is listed is what is there, and the wheel holds all of it."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import auxtap

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _package_folders() -> set[str]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    apart = ("tests/", "fixtures/", "docs/")
    folders = {Path(line).parent for line in listed.splitlines() if not line.startswith(apart)}
    return {".".join(["auxtap", *folder.parts]) for folder in folders if not folder.is_relative_to("examples")}


def test_every_folder_with_code_is_a_listed_package():
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == _package_folders()


def test_every_package_has_an_init():
    for package in PROJECT["tool"]["setuptools"]["packages"]:
        assert (ROOT.joinpath(*package.split(".")[1:]) / "__init__.py").is_file(), package


def test_no_other_module_at_the_root():
    """Any other would land in the wheel as a module of the package."""
    assert sorted(path.name for path in ROOT.glob("*.py")) == ["__init__.py", "cli.py", "tree.py"]


def test_one_version():
    """It stands in core/version.py; the metadata and the package take it from there."""
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert auxtap.__version__ == importlib.metadata.version("auxtap")
    assert re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?", auxtap.__version__)
    wanted = ["git", "grep", "-lF", f'"{auxtap.__version__}"', "--", "*.py", "*.toml", ":!tests"]
    listed = subprocess.run(wanted, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert listed.splitlines() == ["core/version.py"]


@pytest.mark.slow
@pytest.mark.network
def test_the_wheel_holds_everything(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), "."]
    tree = tmp_path / "tree"
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in files:
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(command, cwd=tree, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("auxtap-*.whl"))) as wheel:
        held = {name.removeprefix("auxtap/") for name in wheel.namelist() if name.startswith("auxtap/")}
    code = {
        name
        for name in files
        if name.endswith((".py", ".typed")) and not name.startswith(("tests/", "fixtures/", "examples/", "docs/"))
    }
    data = {
        name
        for name in files
        if name.startswith(("generated/", "serving/engine_locks/", "node/profiles/")) and "." in name
    }
    data |= {"checkout/releases.json"}
    assert held == code | data
