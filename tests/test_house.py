"""The house as a whole: no circles, nothing that stands twice, nothing that nobody uses; and how it is measured."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "examples/benchmarks/house.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module
    spec.loader.exec_module(module)
    return module


house = load_script()


def test_the_house_is_within_its_budget() -> None:
    assert house.over_budget(ROOT) == []


def test_nothing_is_there_that_nothing_uses() -> None:
    done = subprocess.run([Path(sys.executable).with_name("vulture")], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


COPY = """def {0}({1}):
    total = 0
    for x in {1}:
        if x > 2:
            total += x
    print(total)
    return total
"""


@pytest.fixture
def small_house(tmp_path: Path) -> Path:
    files = {
        "a/one.py": "from auxtap.b import two\n" + COPY.format("f", "values"),
        "b/two.py": "def late():\n    from auxtap.a.one import f\n    return f\n",
        "b/one.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from auxtap.c import three\n",
        "c/three.py": "from auxtap.b import one\n" + COPY.format("g", "numbers"),
        "commands/three.py": "\n",
        "tests/one.py": "x = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_circles_doubles_and_copies_are_found(small_house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "BUDGET", dict.fromkeys(house.BUDGET, 0))
    modules = house.read_modules(small_house)
    arrows = house.find_arrows(modules)
    assert {name: others for name, others in arrows.items() if others} == {
        "a.one": {"b.two"},
        "b.two": {"a.one"},
        "c.three": {"b.one"},
    }
    assert house.find_circles(arrows) == [("a.one", "b.two")]
    assert list(house.find_doubles(modules)) == ["one"]
    assert house.find_copies(modules) == [("a/one.py:2 f", "c/three.py:2 g")]
    excess = house.over_budget(small_house)
    assert [each.partition(",")[0] for each in excess] == [
        "1 circles of modules",
        "1 names that stand twice",
        "1 functions that stand twice",
    ]


def test_a_copy_that_does_something_else_is_none(small_house: Path) -> None:
    path = small_house / "c/three.py"
    path.write_text(path.read_text().replace("x > 2", "x > 3"))
    assert house.find_copies(house.read_modules(small_house)) == []


def test_the_figures_are_those_of_the_package(small_house: Path) -> None:
    figures = house.measure(small_house)
    assert (figures["files"], figures["folders"], figures["arrows between folders"]) == ("5", "4", "3")
