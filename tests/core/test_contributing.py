"""The recipe of CONTRIBUTING.md for a hazard: the file that it shows, and nothing else, makes every reader know it."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from auxtap.core.hazards import hazard_table as table
from auxtap.core.hazards import rows
from auxtap.core.hazards.row import Hazard
from auxtap.tests.core.hazard_readers import check_every_reader, reported, serve_says

TEXT = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text()


@pytest.fixture
def row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hazard]:
    """Put the shown file where the table finds it."""
    (shown,) = (block for block in re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S) if "HAZARD = " in block)
    (tmp_path / "riddles.py").write_text(shown)
    monkeypatch.setattr(rows, "__path__", [*rows.__path__, str(tmp_path)])
    table.all_hazards.cache_clear()
    yield table.hazard("riddles")
    table.all_hazards.cache_clear()
    del sys.modules[f"{rows.__name__}.riddles"]


def test_one_file_is_a_hazard(row: Hazard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_every_reader(row, tmp_path, monkeypatch)
    found = reported("riddle_level")["riddles"]
    assert (found.text, found.avoid) == (row.reason, "start without --riddle-level")
    assert found.evidence[0].code == "riddle_level: int = 0"


def test_without_it_nobody_knows_it() -> None:
    assert "riddles" not in {known.name for known in table.all_hazards()}
    assert "riddles" not in reported("riddle_level")
    assert serve_says(("--riddle-level", "2")) == ""


def test_a_file_that_holds_another_name_is_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "misnamed.py").write_text(
        "from auxtap.core.hazards.row import Hazard\nHAZARD = Hazard('other', 'a reason', 'a trigger')\n"
    )
    monkeypatch.setattr(rows, "__path__", [*rows.__path__, str(tmp_path)])
    table.all_hazards.cache_clear()
    try:
        with pytest.raises(ValueError, match="file and hazard have one name"):
            table.all_hazards()
    finally:
        table.all_hazards.cache_clear()
        sys.modules.pop(f"{rows.__name__}.misnamed", None)
