"""Whether a server of a tree would load plugins, read from the tree and not from its version."""

from dataclasses import replace

import pytest

from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tests.tracer.releases import release_tree
from auxtap.tracer.hazards.plugin_way import find_plugin_way
from auxtap.tracer.report.trace_report import Fact

pytestmark = pytest.mark.network
SCHEDULER = SRT_ROOT / "managers/scheduler.py"


@pytest.mark.slow
@pytest.mark.parametrize("release", ["0.5.14", "0.5.23"])
def test_open_where_each_scheduler_loads_plugins(release):
    way = find_plugin_way(release_tree(release))
    fact = way.fact
    assert way.state == "open" and fact.kind == "plugin" and fact.text.startswith("the plugin way is open")
    assert [evidence.code for evidence in fact.evidence] == [
        'GENERAL_PLUGINS_GROUP = "sglang.srt.plugins"',
        "def load_plugins():",
        "load_plugins()",
    ]
    assert fact.evidence[2].file == SCHEDULER


@pytest.mark.parametrize("release", ["0.4.5", "0.5.9"])
def test_closed_before(release):
    way = find_plugin_way(release_tree(release))
    assert way.state == "closed" and way.fact.text.startswith("the plugin way is closed") and way.fact.evidence == ()


@pytest.mark.parametrize("call", [b"pass", b"if server_args.plugins: load_plugins()", b"(("])
def test_unknown_where_the_call_is_not_seen(call: bytes):
    tree = release_tree("0.5.14")
    data = tree.files[SCHEDULER].replace(b"    load_plugins()\n", b"    " + call + b"\n")
    assert data != tree.files[SCHEDULER]
    way = find_plugin_way(with_file(tree, data))
    assert way.state == "unknown" and len(way.fact.evidence) == 2


def with_file(tree: SourceTree, data: bytes) -> SourceTree:
    return replace(tree, files={**tree.files, SCHEDULER: data})


def test_the_fact_is_data():
    fact = find_plugin_way(release_tree("0.5.14")).fact
    assert isinstance(fact, Fact)
    assert fact.to_json()["kind"] == "plugin"
