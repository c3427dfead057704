"""Ranges of releases, and the page."""

import pytest

from auxtap.core.errors import UsageError
from auxtap.rewriters.patch.registry import DEFAULT_MODELS
from auxtap.tests.shaped import RUNNER
from auxtap.verification.proof.proof_level import ProofLevel, ProvedCase
from auxtap.verification.releases.compatibility import compatibility_page
from auxtap.verification.releases.sweep import Place, ReleaseResult, chosen_releases


def test_every_release_of_the_lock_table() -> None:
    releases = chosen_releases(None)
    assert (releases[0], releases[-1], len(releases)) == ("0.4.5", "0.5.23", 66)
    assert chosen_releases("all") == releases


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("0.5.9", ("0.5.9",)),
        ("0.5.8..0.5.9", ("0.5.8", "0.5.8.post1", "0.5.9")),
        ("0.5.22..", ("0.5.22", "0.5.23")),
        ("..0.4.5.post1", ("0.4.5", "0.4.5.post1")),
        ("0.5.10,0.5.9", ("0.5.9", "0.5.10")),
    ],
)
def test_ranges(text: str, chosen: tuple[str, ...]) -> None:
    assert chosen_releases(text) == chosen


@pytest.mark.parametrize("text", ["", "..", "9.9", "0.5.9..0.5.8", "0.5.9,9.9"])
def test_refused_ranges(text: str) -> None:
    with pytest.raises(UsageError):
        chosen_releases(text)


ARM = Place("arm", RUNNER.name, "ModelRunner.initialize", 10)
PROVED = ProofLevel("engine-proved", (ProvedCase("llama", ("llama",), "pp2", 4, 1130, 1.2e-6),), "")
RESULTS = (
    ReleaseResult("0.5.8", 1.0, 5, 10, (ARM,), ("radix cache: flag",), ("--disable-radix-cache",), ("applies",)),
    ReleaseResult("0.5.9", 2.0, 5, 10, (ARM,), passed=("applies",), level=PROVED),
    ReleaseResult("0.5.10", 3.0, problem="arm: no single anchor"),
    ReleaseResult("0.5.11", 3.0, 5, 10, (Place("arm", RUNNER.name, "ModelRunner.other", 3),), rejected=("parses: no",)),
)


def test_the_page_says_what_became_of_each_release() -> None:
    page = compatibility_page(RESULTS, DEFAULT_MODELS)
    assert "2 of 4 releases have a patch whose checks hold; 1 are engine-proved" in page
    assert "| 0.5.9 | 5 | 10 | arm | 0 |  | 1 of 1 | engine-proved |" in page
    assert "| 0.5.10 |  |  | refused: arm: no single anchor |" in page
    assert "| 0.5.9 | llama | pp2 | 4 | 1130 | 1.2e-06 |" in page
    assert "`ModelRunner.initialize` 0.5.8 to 0.5.9; `ModelRunner.other` 0.5.11" in page
    assert page == compatibility_page(RESULTS, DEFAULT_MODELS)


def test_the_page_holds_no_time() -> None:
    later = [ReleaseResult("0.5.8", seconds, 5, 10) for seconds in (1.0, 9.0)]
    assert len({compatibility_page([result], DEFAULT_MODELS) for result in later}) == 1
