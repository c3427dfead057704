"""Report and patch agree: a class that the trace sees capturing is read for the patch, or objected to with a reason."""

import pytest

from auxtap.core.source_tree import MODELS_ROOT, is_below
from auxtap.rewriters.patch.table import backbone_key, backbone_table
from auxtap.tests.tracer.releases import all_releases, release_tree
from auxtap.tracer.reading.trees import Readings
from auxtap.tracer.tracing import trace_tree

pytestmark = [pytest.mark.network, pytest.mark.slow]
# A class with one of these runs the blocks: others hold the list, or are handed a collector.
_RUNNING = ("layer_test", "accumulator_init")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    everything = metafunc.config.getoption("--all-releases")
    metafunc.parametrize("release", all_releases() if everything else ("0.5.9", "0.5.23"))


def test_no_class_that_captures_is_passed_over_in_silence(release: str) -> None:
    tree = release_tree(release)
    read = Readings().of(tree)
    names: dict[str, dict[str, object]] = {}
    exec(backbone_table(read, ()), names)
    known = {key for table in ("CAPTURES", "LOOPS", "REFUSED") for key in names[table]}
    silent = {
        (str(trace.file), site.scope)
        for trace in trace_tree(tree, everything=True).files
        for site in trace.capture_sites
        if is_below(trace.file, MODELS_ROOT)
        and site.role in _RUNNING
        and "." in site.scope
        and backbone_key(trace.file, site.scope.partition(".")[0]) not in known
    }
    assert silent == set()
    assert all(item.reason for item in read.objections.values())
