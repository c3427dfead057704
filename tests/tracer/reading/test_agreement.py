"""Report and patch agree: each class that is seen capturing is planned, or objected to with its reason."""

import pytest

from auxtap.checkout.source import open_source
from auxtap.core.cache import CacheLayout
from auxtap.core.source_tree import MODELS_ROOT
from auxtap.rewriters.patch.table import backbone_table
from auxtap.tracer.report.readings import ModelReadings
from auxtap.tracer.source.trace_cache import TraceCache
from auxtap.tracer.tracing import trace_tree
from auxtap.verification.releases.sweep import chosen_releases

pytestmark = pytest.mark.network

FEW_RELEASES = ("0.5.9", "0.5.23")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-releases")
        metafunc.parametrize("release", chosen_releases(None) if everything else FEW_RELEASES)


def test_every_class_that_collects_is_read_and_stands_in_the_table(release: str, shared_cache: CacheLayout) -> None:
    tree = open_source(f"pypi:{release}", shared_cache).tree
    report = trace_tree(tree, everything=True, cache=TraceCache(shared_cache.root / "traces"))
    read = {(reading.file, reading.class_name) for reading in report.readings}
    collecting = {
        (trace.file, site.scope.partition(".")[0])
        for trace in report.files
        for site in trace.capture_sites
        if site.role == "accumulator_init" and trace.file.is_relative_to(MODELS_ROOT)
    }
    filled = {
        (trace.file, site.scope.partition(".")[0])
        for trace in report.files
        for site in trace.capture_sites
        if site.role in ("append", "collector_hand_in", "boundary_hand_in")
    }
    assert collecting & filled <= read
    table: dict[str, dict[str, object]] = {}
    exec(backbone_table(ModelReadings(report.readings, ()), (), ()), table)
    for path, name in collecting & filled:
        key = f"{'.'.join(path.relative_to(MODELS_ROOT).with_suffix('').parts)}.{name}"
        assert (key in table["CAPTURES"]) is not (key in table["REFUSED"])
