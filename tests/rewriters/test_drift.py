"""Drift injected into real releases: the patch follows it with the right names, or refuses; it is never wrong."""

import os
from pathlib import Path

import pytest

from auxtap.core.errors import PatchError
from auxtap.core.source_tree import SourceTree
from auxtap.tests.rewriters.drifts import (
    DRIFTS,
    RELEASES,
    TITLE,
    VALUE_DRIFTS,
    Drift,
    drift_page,
    drifted,
    propose,
)
from auxtap.verification.static.tap_reads import value_faults

pytestmark = [pytest.mark.network, pytest.mark.slow]
PAGE = Path(__file__).resolve().parents[2] / "docs/drift.md"
CASES = [pytest.param(d, r, id=f"{d.name}-{r}") for d in DRIFTS for r in d.releases]


@pytest.mark.parametrize(("drift", "release"), CASES)
def test_drift_is_followed_or_refused(drift: Drift, release: str, trees: dict[str, SourceTree]) -> None:
    changed = drifted(drift, release, trees)
    if drift.refused:
        with pytest.raises(PatchError) as caught:
            propose(changed)
        assert drift.refused in caught.value.message
    else:
        assert f"if _auxtap is not None:\n    {drift.line}" in [line.code for line in propose(changed)]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("drift", VALUE_DRIFTS, ids=lambda drift: drift.name)
def test_a_value_that_is_gone_or_comes_from_elsewhere_is_seen(
    drift: Drift, release: str, trees: dict[str, SourceTree]
) -> None:
    assert not list(value_faults(trees[release]))
    assert any(drift.refused in found for found in value_faults(drifted(drift, release, trees)))


def test_the_page_lists_every_drift_and_its_outcome() -> None:
    places, title, values = PAGE.read_text().partition(TITLE)
    if os.environ.get("AUXTAP_WRITE_FIXTURES"):
        PAGE.write_text(drift_page() + title + values)
        places = drift_page()
    assert places == drift_page()
