"""What is kept of a tree's model files is what a fresh look gives."""

import os
from pathlib import Path

import pytest

from auxtap.core.source_tree import MODELS_ROOT
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.tests.shaped import LLAMA, MIXTRAL, fixture, shaped_files, shaped_tree
from auxtap.tracer.reading import trees
from auxtap.tracer.reading.trees import Readings

FILES = {MIXTRAL: fixture("loop", "sum.before"), MODELS_ROOT / "broken.py": b"class ("}


def test_readings_are_in_order_and_what_is_not_python_is_left_out() -> None:
    found = Readings().of(shaped_tree(FILES)).readings
    paths = [reading.file for reading in found]
    assert paths == sorted(paths) and {LLAMA, MIXTRAL} <= set(paths) and MODELS_ROOT / "broken.py" not in paths


def test_what_was_kept_is_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = shaped_tree(FILES)
    found = Readings(tmp_path).of(tree)
    # Whoever read now would fail.
    monkeypatch.setattr(trees, "read_models", None)
    assert Readings(tmp_path).of(tree) == found


def test_one_reading_of_a_tree_serves_who_asks_again() -> None:
    readings, tree = Readings(), shaped_tree(FILES)
    assert readings.of(tree) is readings.of(tree)


def test_another_content_or_another_name_is_another_reading(tmp_path: Path) -> None:
    readings = Readings(tmp_path)
    before = readings.of(shaped_tree(FILES))
    assert readings.of(shaped_tree({**FILES, MIXTRAL: shaped_files()[LLAMA]})) != before
    moved = {MODELS_ROOT / "other.py": FILES[MIXTRAL]}
    assert {each.file for each in readings.of(shaped_tree(moved)).readings} != {each.file for each in before.readings}
    assert readings.of(shaped_tree(FILES)) == before


@pytest.mark.parametrize("damage", [b"", b"{", b"[[1]]", b"null", b'[[["a"]]]', b"[" * 100_000])
def test_a_damaged_entry_counts_as_none(damage: bytes, tmp_path: Path) -> None:
    found = Readings(tmp_path).of(shaped_tree(FILES))
    (entry,) = tmp_path.rglob("*.json")
    entry.write_bytes(damage)
    assert Readings(tmp_path).of(shaped_tree(FILES)) == found
    assert Readings(tmp_path).of(shaped_tree(FILES)) == found and entry.read_bytes() != damage


def test_names_that_are_no_text_are_kept_too(tmp_path: Path) -> None:
    odd = MODELS_ROOT / os.fsdecode(b"caf\xe9.py")
    found = Readings(tmp_path).of(shaped_tree({odd: FILES[MIXTRAL]}))
    assert odd in {reading.file for reading in found.readings}
    assert Readings(tmp_path).of(shaped_tree({odd: FILES[MIXTRAL]})) == found


def test_a_cache_that_cannot_be_written_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    tree = shaped_tree(FILES)
    assert Readings(tmp_path / "file").of(tree) == Readings().of(tree)


def test_a_plan_is_the_same_with_kept_readings(tmp_path: Path) -> None:
    tree = shaped_tree(FILES)
    plans = [
        plan_capture(tree, ("llama", "mixtral"), (3,), readings) for readings in (None, *(Readings(tmp_path),) * 2)
    ]
    plans.append(plan_capture(tree, ("llama", "mixtral"), (3,), Readings(tmp_path)))
    assert all(plan == plans[0] for plan in plans)
