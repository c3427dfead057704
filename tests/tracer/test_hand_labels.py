"""Labels written by hand from reading the source, before the tool's answer was looked at."""

import json
from pathlib import PurePosixPath
from typing import Any

import pytest

from auxtap.tests.tracer.conftest import FIXTURES
from auxtap.tests.tracer.counting import STAGE_NAMES
from auxtap.tests.tracer.drawing import draw_places
from auxtap.tests.tracer.releases import release_tree
from auxtap.tracer.report.entries import CaptureSite, FileTrace
from auxtap.tracer.tracing import trace_file

pytestmark = [pytest.mark.network, pytest.mark.slow]

WHOLE: dict[str, dict[str, list[dict[str, Any]]]] = json.loads((FIXTURES / "golden/hand-labels.json").read_text())
BLIND: dict[str, dict[str, Any]] = json.loads((FIXTURES / "golden/drawn-blind-labels.json").read_text())
DRAWN: dict[str, list[dict[str, Any]]] = json.loads((FIXTURES / "golden/drawn-labels.json").read_text())


@pytest.mark.parametrize(("release", "name"), [(release, name) for release, files in WHOLE.items() for name in files])
def test_a_whole_file(release: str, name: str) -> None:
    """Every site and branch of the file, with its role and scope, and its expression where one was written down."""
    path = PurePosixPath(name)
    trace = trace_file(path, release_tree(release).files[path])
    found = {
        (entry.line, entry.role, entry.scope): entry.value if isinstance(entry, CaptureSite) else None
        for entry in trace.entries
    }
    labels = WHOLE[release][name]
    assert set(found) == {(label["line"], label["role"], label["scope"]) for label in labels}
    for label in labels:
        if "value" in label:
            assert found[label["line"], label["role"], label["scope"]] == label["value"]


@pytest.mark.parametrize("release", DRAWN)
def test_sites_drawn_at_random(release: str) -> None:
    """Sixty places a release, drawn with a fixed seed; one in fifty may differ."""
    differing = []
    for label in DRAWN[release]:
        path = PurePosixPath(label["file"])
        trace = trace_file(path, release_tree(release).files[path])
        found = {
            entry.role
            for entry in trace.entries
            if (entry.line, entry.scope) == (label["line"], label["scope"])
            and label["name"] == (entry.name if isinstance(entry, CaptureSite) else entry.test)
        }
        if label["role"] not in found:
            differing.append((label, found))
    assert len(DRAWN[release]) == 60
    assert len(differing) <= 60 * 0.02, differing


@pytest.mark.parametrize("release", BLIND)
def test_sites_labelled_before_the_tool_was_asked(release: str) -> None:
    """Sixty more a release: the places are those that the seed draws, and one in fifty may differ."""
    drawn = draw_places(release_tree(release), BLIND[release]["seed"], 60)
    labels = BLIND[release]["labels"]
    assert [(label["file"], label["line"], label["name"]) for label in labels] == [tuple(place) for place in drawn]
    differing = [label for label in labels if _role_at(release, label) != label["role"]]
    assert differing == [label for label in labels if "differs" in label]
    assert len(differing) <= 60 * 0.02


def _role_at(release: str, label: dict[str, Any]) -> str:
    """Return the role of a name: its own, or that of the wrapped statement above it that counts several names."""
    path = PurePosixPath(label["file"])
    trace = trace_file(path, release_tree(release).files[path])
    if label["name"] in STAGE_NAMES:
        (role,) = {branch.role for branch in trace.stage_branches if branch.line == label["line"]}
        return role
    for site in reversed(trace.capture_sites):
        own = site.line == label["line"] and site.name == label["name"]
        if own or (site.line <= label["line"] and site.n_names > 1 and not _has_own_site(trace, label)):
            return site.role
    raise AssertionError(f"{label} belongs to no site")


def _has_own_site(trace: FileTrace, label: dict[str, Any]) -> bool:
    return any(site.line == label["line"] and site.name == label["name"] for site in trace.capture_sites)
