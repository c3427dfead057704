"""Every release: each name belongs to one site or branch, by an independent count, and hardly any is unknown."""

import json

import pytest

from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tests.tracer.counting import ANYWHERE, count_tokens
from auxtap.tests.tracer.releases import FEW_RELEASES, ROOT, all_releases, release_tree
from auxtap.tracer.report.trace_report import TraceReport
from auxtap.tracer.report.trace_sweep import row_of, table_rows
from auxtap.tracer.tracing import trace_tree

pytestmark = [pytest.mark.network, pytest.mark.slow]

# In these nothing may be unknown; elsewhere one site in a hundred.
KNOWN_WHOLE = ("0.5.9", "0.5.23")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-releases")
        metafunc.parametrize("release", all_releases() if everything else FEW_RELEASES)


def test_every_name_of_a_release_has_one_place(release: str) -> None:
    tree = release_tree(release)
    report = trace_tree(tree, everything=True)
    assert_all_counted(tree, report)
    n_places = sum(len(trace.capture_sites) + len(trace.stage_branches) for trace in report.files)
    assert report.n_unknown <= (0 if release in KNOWN_WHOLE else n_places / 100)
    assert report.skipped == ()
    recorded = {row.release: row for row in table_rows((ROOT / "docs/trace-sweep.md").read_text())}
    assert row_of(report, 0.0).without_time() == recorded[release].without_time()


def assert_all_counted(tree: SourceTree, report: TraceReport) -> None:
    seen = set()
    for trace in report.files:
        seen.add(trace.file)
        count = count_tokens(tree.files[trace.file])
        settings = [site for site in trace.capture_sites if site.role.startswith("setting_")]
        n_settings = sum(site.n_names for site in settings)
        n_sites = sum(site.n_names for site in trace.capture_sites) - n_settings
        assert n_sites + trace.mentions.imports == count.n_capture, trace.file
        assert len(trace.stage_branches) == count.n_stage, trace.file
        assert n_settings == count.n_assigned, trace.file
    rest = {path: data for path, data in tree.files.items() if path.is_relative_to(SRT_ROOT) and path not in seen}
    assert [path for path, data in rest.items() if ANYWHERE.search(data)] == []


def test_the_table_has_all_releases() -> None:
    rows = table_rows((ROOT / "docs/trace-sweep.md").read_text())
    locked = json.loads((ROOT / "checkout/releases.json").read_text())
    assert [row.release for row in rows] == list(locked)
