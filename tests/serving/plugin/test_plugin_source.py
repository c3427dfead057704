"""What `auxtap serve --plugin` finds out before it starts anything."""

import sys
from pathlib import Path

import pytest

from auxtap.checkout.source import open_source
from auxtap.commands.plugin_source import find_plugin_source
from auxtap.commands.serve_spec import Wanted, plugin_spec
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import PatchError, ServerError, SourceError, UsageError
from auxtap.serving.profile import build_launch
from auxtap.tests.serving.plugin.conftest import LAYERS, PluginCase

pytestmark = [pytest.mark.network, pytest.mark.slow]
PYTHON = Path(sys.executable)


def wanted(tmp_path: Path, *, cpu: bool = False) -> Wanted:
    return Wanted(PYTHON, None, None, cpu, tmp_path / "spool", "127.0.0.1", 0, None, ())


def test_the_server_gets_plugin_flags_and_layers(
    plugin_case: PluginCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(plugin_case.tree / "python"))
    monkeypatch.setenv("AUXTAP_CACHE", str(tmp_path / "cache"))
    spec = plugin_spec(None, "some/model", plugin_case.patch_folder, wanted(tmp_path))
    assert (spec.tree, spec.release, spec.layers) == (None, "0.5.14", LAYERS)
    launch = build_launch(spec)
    assert set(plugin_case.patch_set.plan.server_flags) <= set(launch.argv)
    environment = launch.environment
    assert environment["PYTHONPATH"].split(":") == [str(spec.plugin), str(plugin_case.tree / "python")]
    assert environment["AUXTAP_PATCH"] == str(plugin_case.patch_folder)
    assert "AUXTAP_PATCH_DIGEST" not in environment


def test_a_release_that_loads_no_plugins_is_told(
    shared_cache: CacheLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "sglang"
    tree = open_source("pypi:0.5.9", shared_cache).tree
    for name in ("srt/managers/scheduler.py",):
        (package / name).parent.mkdir(parents=True)
        (package / name).write_bytes(tree.files[next(path for path in tree.files if str(path).endswith(name))])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SourceError, match="the plugin way is closed"):
        find_plugin_source(PYTHON, None)


def test_a_python_without_sglang_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(ServerError, match="has no SGLang"):
        find_plugin_source(PYTHON, None)
    with pytest.raises(ServerError, match="cannot run /no/python"):
        find_plugin_source(Path("/no/python"), None)


def test_a_patch_for_another_sglang_is_told(
    plugin_case: PluginCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(plugin_case.tree / "python"))
    committed = Path(__file__).resolve().parents[3] / "generated/sglang-0.5.9"
    with pytest.raises(PatchError, match="is not for this SGLang") as caught:
        find_plugin_source(PYTHON, committed)
    assert caught.value.hint is not None and "--plugin-patch" in caught.value.hint


@pytest.mark.parametrize("options", [{"worktree": Path("tree")}, {"cpu": True}, {"model": None}])
def test_what_does_not_go_with_the_plugin_is_refused(tmp_path: Path, options: dict[str, object]) -> None:
    worktree = Path("tree") if "worktree" in options else None
    model = None if "model" in options else "some/model"
    with pytest.raises(UsageError):
        plugin_spec(worktree, model, None, wanted(tmp_path, cpu="cpu" in options))
