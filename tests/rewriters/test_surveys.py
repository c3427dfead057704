"""What is kept of a tree's model files is what a fresh look gives."""

import os
from pathlib import Path

import pytest

from auxtap.core.source_tree import MODELS_ROOT
from auxtap.rewriters.backbones import surveys as module
from auxtap.rewriters.backbones.surveys import Surveys
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.tests.shaped import LLAMA, MIXTRAL, fixture, shaped_files, shaped_tree

FILES = {MIXTRAL: fixture("loop", "sum.before"), MODELS_ROOT / "broken.py": b"class ("}


def test_files_are_listed_in_order_and_what_is_not_python_is_left_out() -> None:
    files = Surveys().of(shaped_tree(FILES))
    paths = [file.path for file in files]
    assert paths == sorted(paths) and {LLAMA, MIXTRAL} <= set(paths) and MODELS_ROOT / "broken.py" not in paths
    llama = next(file for file in files if file.path == LLAMA)
    assert llama.survey.captures and llama.classes.classes[0].methods


def test_what_was_kept_is_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = shaped_tree(FILES)
    found = Surveys(tmp_path).of(tree)
    # Whoever surveyed now would fail.
    monkeypatch.setattr(module, "survey_backbones", None)
    assert Surveys(tmp_path).of(tree) == found


def test_one_survey_of_a_tree_serves_who_asks_again() -> None:
    surveys, tree = Surveys(), shaped_tree(FILES)
    assert surveys.of(tree) is surveys.of(tree)


def test_another_content_or_another_name_is_another_survey(tmp_path: Path) -> None:
    surveys = Surveys(tmp_path)
    before = surveys.of(shaped_tree(FILES))
    assert surveys.of(shaped_tree({**FILES, MIXTRAL: shaped_files()[LLAMA]})) != before
    moved = {MODELS_ROOT / "other.py": FILES[MIXTRAL]}
    assert {file.path for file in surveys.of(shaped_tree(moved))} != {file.path for file in before}
    assert surveys.of(shaped_tree(FILES)) == before


@pytest.mark.parametrize("damage", [b"", b"{", b"[[1]]", b"null", b'[[["a"]]]', b"[" * 100_000])
def test_a_damaged_entry_counts_as_none(damage: bytes, tmp_path: Path) -> None:
    found = Surveys(tmp_path).of(shaped_tree(FILES))
    (entry,) = tmp_path.rglob("*.json")
    entry.write_bytes(damage)
    assert Surveys(tmp_path).of(shaped_tree(FILES)) == found
    assert Surveys(tmp_path).of(shaped_tree(FILES)) == found and entry.read_bytes() != damage


def test_names_that_are_no_text_are_kept_too(tmp_path: Path) -> None:
    odd = MODELS_ROOT / os.fsdecode(b"caf\xe9.py")
    found = Surveys(tmp_path).of(shaped_tree({odd: FILES[MIXTRAL]}))
    assert odd in {file.path for file in found}
    assert Surveys(tmp_path).of(shaped_tree({odd: FILES[MIXTRAL]})) == found


def test_a_cache_that_cannot_be_written_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    tree = shaped_tree(FILES)
    assert Surveys(tmp_path / "file").of(tree) == Surveys().of(tree)


def test_a_plan_is_the_same_with_kept_surveys(tmp_path: Path) -> None:
    tree = shaped_tree(FILES)
    plans = [plan_capture(tree, ("llama", "mixtral"), (3,), surveys) for surveys in (None, *(Surveys(tmp_path),) * 2)]
    plans.append(plan_capture(tree, ("llama", "mixtral"), (3,), Surveys(tmp_path)))
    assert all(plan == plans[0] for plan in plans)
