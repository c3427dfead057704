"""No change of a value may be captured: real releases are changed by program, patched, and what was patched runs.

By default those of two releases; `--all-releases` takes all, and with `AUXTAP_WRITE_FIXTURES=1` writes the page.
"""

import os
from collections import defaultdict
from pathlib import Path

import pytest

from auxtap.core.source_tree import SourceTree
from auxtap.tests.rewriters.drifts import TITLE
from auxtap.tests.rewriters.judging import Outcome, judge, judge_trees, without_other_models
from auxtap.tests.rewriters.mutations import HARMLESS, MODELS, Mutation, all_mutations
from auxtap.tests.tracer.releases import release_tree

pytestmark = [pytest.mark.network, pytest.mark.slow]
PAGE = Path(__file__).resolve().parents[2] / "docs/drift.md"
FEW, ALL = ("0.5.9", "0.5.23"), ("0.5.9", "0.5.14", "0.5.17", "0.5.23")
_HEAD = f"""{TITLE}
Changes of what is captured, done by program to the models of four releases: by value, order, place, condition and
storage (`tests/rewriters/mutations.py`). Each changed tree is patched, and the model that was patched runs on tiny
tensors that alias and change in place as real ones do, its layers chosen by the tap itself: all, some and one, on one
pipeline stage and on two, in two forwards each. What reaches the logits processor (or the tap at the exit of a stage)
is compared with what entered each block. No change after which these differ may be captured; what is refused runs as
well, as if it were captured.

| change | of | where | patch | run |
| --- | --- | --- | --- | --- |
"""


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> list[tuple[Mutation, Outcome]]:
    releases = ALL if request.config.getoption("--all-releases") else FEW
    chosen = [each for each in all_mutations() if each.release in releases]
    return list(zip(chosen, judge(chosen, release_tree), strict=True))


def page_rows(outcomes: list[tuple[Mutation, Outcome]]) -> list[str]:
    """Return a row for each change and outcome, with where that came of it."""
    places: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for mutation, outcome in outcomes:
        key = mutation.name, mutation.kind, outcome.patch, outcome.run
        places[key].append(f"{mutation.model} {mutation.release}")
    return [f"| {key[0]} | {key[1]} | {', '.join(found)} | {key[2]} | {key[3]} |" for key, found in places.items()]


def test_no_change_of_a_value_is_captured(outcomes: list[tuple[Mutation, Outcome]]) -> None:
    assert [(each.id, outcome.fault) for each, outcome in outcomes if outcome.is_wrong] == []


def test_what_changes_no_value_is_captured_as_before(outcomes: list[tuple[Mutation, Outcome]]) -> None:
    harmless = [(each.id, outcome) for each, outcome in outcomes if each.kind == HARMLESS]
    assert harmless
    assert [name for name, outcome in harmless if not outcome.captured or outcome.fault] == []


def test_most_of_the_changes_are_seen_by_running(outcomes: list[tuple[Mutation, Outcome]]) -> None:
    """A run that saw nothing would find nothing captured wrongly either."""
    changing = [outcome for each, outcome in outcomes if each.kind != HARMLESS]
    assert len(changing) >= 100
    assert sum(outcome.fault != "" for outcome in changing) >= 0.85 * len(changing)


def test_the_page_lists_every_change_and_its_outcome(
    outcomes: list[tuple[Mutation, Outcome]], request: pytest.FixtureRequest
) -> None:
    everything = request.config.getoption("--all-releases")
    before, _, _ = PAGE.read_text().partition(TITLE)
    if os.environ.get("AUXTAP_WRITE_FIXTURES") and everything:
        PAGE.write_text(before + _HEAD + "".join(f"{row}\n" for row in page_rows(outcomes)))
    listed = PAGE.read_text().removeprefix(before)
    if everything:
        assert listed == _HEAD + "".join(f"{row}\n" for row in page_rows(outcomes))
        return
    rows = [line.strip("| ").split(" | ") for line in listed.splitlines() if line.startswith("| ")]
    for mutation, outcome in outcomes:
        place = f"{mutation.model} {mutation.release}"
        found = [row for row in rows if row[:2] == [mutation.name, mutation.kind] and place in row[2].split(", ")]
        assert [row[3:] for row in found] == [[outcome.patch, outcome.run]], mutation.id


@pytest.mark.parametrize("release", ALL)
def test_what_a_release_captures_is_what_enters_its_blocks(release: str) -> None:
    tree: SourceTree = release_tree(release)
    found = judge_trees([(without_other_models(tree, model), model) for model in MODELS])
    assert dict(zip(MODELS, found, strict=True)) == dict.fromkeys(MODELS, Outcome(True, ""))
