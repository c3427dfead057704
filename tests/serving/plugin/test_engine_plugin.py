"""The plugin in a real server: what transformers computes, and byte for byte what the patched way stores."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from auxtap.checkout.worktree import apply_patch, revert
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import ServerError
from auxtap.extraction.canary.stored_states import read_states
from auxtap.extraction.store.reader import StoreReader
from auxtap.extraction.store.store_manifest import read_manifest
from auxtap.serving.engine_env import EngineEnvironment, set_up_engine
from auxtap.serving.plugin_home import make_plugin_home
from auxtap.serving.processes import choose_port
from auxtap.serving.profile import LOOPBACK, LaunchSpec
from auxtap.serving.server import ServerProcess, be_silent
from auxtap.tests.real_server import assert_serves_right_states
from auxtap.tests.serving.plugin.conftest import LAYERS, PluginCase, make_plugin_case
from auxtap.verification.engine.engine_cases import EngineCase
from auxtap.verification.engine.engine_proof import compare_runs, run_cases
from auxtap.verification.engine.engine_run import run_case
from auxtap.verification.engine.fork_server import ForkServer
from auxtap.verification.engine.tiny_models import make_tiny_models

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
# With --engine-matrix all of them.
RELEASES = ("0.5.14", "0.5.23")
ALONE = EngineCase("llama", "one_by_one")
CASES = (ALONE, EngineCase("llama", "pp2"), EngineCase("deepseek_v3", "chunk16"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" in metafunc.fixturenames:
        every = metafunc.config.getoption("--engine-matrix")
        metafunc.parametrize("release", RELEASES if every else RELEASES[:1], scope="session")


@pytest.fixture(scope="session")
def case(
    release: str, plugin_case: PluginCase, shared_cache: CacheLayout, tmp_path_factory: pytest.TempPathFactory
) -> PluginCase:
    if release == plugin_case.source.tree.release:
        return plugin_case
    return make_plugin_case(release, shared_cache, tmp_path_factory.mktemp("plugin"))


def test_the_plugin_gives_what_the_patch_gives(case: PluginCase, shared_cache: CacheLayout, tmp_path: Path) -> None:
    release = case.source.tree.release
    engine = set_up_engine(release, shared_cache)
    models = {model.name: model for model in make_tiny_models(("llama", "deepseek_v3"), engine, shared_cache)}
    template = plugged_server(case, engine, shared_cache, tmp_path)
    plugged = tmp_path / "plugged"
    plugged.mkdir()
    with ForkServer(template) as fork_server:
        runs = [run_case(each, models[each.model], fork_server, template, plugged, be_silent) for each in CASES]
    for result in compare_runs(runs, engine.python, release):
        assert result.problem is None
        assert result.holds, result
        assert max(cell.max_rel or 0.0 for cell in result.cells) < 5e-6

    written = tmp_path / "patched"
    written.mkdir()
    applied = apply_patch(case.source, case.patch_set, tmp_path / "worktree")
    try:
        (by_patch,) = run_cases(applied, engine, shared_cache, (ALONE,), written)
    finally:
        revert(applied.path, force=True)
    assert by_patch.problem is None
    assert_same_states(runs[0].pair.store, by_patch.pair.store)
    assert_the_way_is_told(runs[0].pair.store, by_patch.pair.store, case)


def plugged_server(case: PluginCase, engine: EngineEnvironment, cache: CacheLayout, folder: Path) -> LaunchSpec:
    release = case.source.tree.release
    return LaunchSpec(
        python=engine.python,
        tree=case.tree,
        model_path="",
        port=0,
        spool=folder / "spool",
        layers=LAYERS,
        cpu=True,
        required_arguments=case.patch_set.plan.server_flags,
        plugin=make_plugin_home(cache),
        plugin_patch=case.patch_folder,
        log=folder / "import.log",
        bytecode=cache.bytecode / f"sglang-{release}",
    )


def test_a_server_started_the_ordinary_way(case: PluginCase, shared_cache: CacheLayout, tmp_path: Path) -> None:
    """Its processes are spawned, and the modules that the plugin changes are imported after it is loaded."""
    engine = set_up_engine(case.source.tree.release, shared_cache)
    (model,) = make_tiny_models(("llama",), engine, shared_cache)
    spec = replace(
        plugged_server(case, engine, shared_cache, tmp_path),
        model_path=str(model.path),
        port=choose_port(LOOPBACK, 0),
        log=tmp_path / "server.log",
    )
    assert_serves_right_states(spec, tmp_path, engine.python)
    assert json.loads((tmp_path / "store/manifest.json").read_bytes())["way"] == "plugin"


def test_a_server_whose_sglang_was_changed_does_not_start(
    case: PluginCase, shared_cache: CacheLayout, tmp_path: Path
) -> None:
    engine = set_up_engine(case.source.tree.release, shared_cache)
    (model,) = make_tiny_models(("llama",), engine, shared_cache)
    other = tmp_path / "patches"
    shutil.copytree(Path(__file__).resolve().parents[3] / "generated/sglang-0.5.9", other)
    spec = replace(
        plugged_server(case, engine, shared_cache, tmp_path),
        model_path=str(model.path),
        port=choose_port(LOOPBACK, 0),
        plugin_patch=other,
    )
    with ServerProcess(spec) as server, pytest.raises(ServerError, match=r"^auxtap: refused: the patch .* is not for"):
        server.wait_ready(timeout_s=300)


def assert_same_states(one: Path, other: Path) -> None:
    mine, theirs = read_states(one), read_states(other)
    assert [each.ids for each in mine] == [each.ids for each in theirs] and len(mine) == len(StoreReader(one)) > 0
    for ours, expected in zip(mine, theirs, strict=True):
        assert ours.data == expected.data


def assert_the_way_is_told(plugged: Path, patched: Path, case: PluginCase) -> None:
    mine, theirs = (json.loads((store / "manifest.json").read_bytes()) for store in (plugged, patched))
    assert (mine["way"], theirs["way"]) == ("plugin", "patch")
    for name in ("release", "patch_digest", "source_digest"):
        assert mine[name] == theirs[name], name
    assert mine["patch_digest"] == case.patch_set.digest
    differences = read_manifest(plugged / "manifest.json").differences(read_manifest(patched / "manifest.json"))
    assert "way: plugin, now patch" in differences
