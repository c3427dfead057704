"""What `auxtap serve` decides before and around the server."""

import json
import os
from pathlib import Path

import pytest

from auxtap.commands import serve_spec
from auxtap.commands.serve import run_server
from auxtap.commands.serve_spec import check_model_path, default_spool, layers_for, local_model, serving_python
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import ServerError, UsageError
from auxtap.serving.profile import LaunchSpec


def make_model(folder: Path, n_blocks: int) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": n_blocks}))
    return str(folder)


def test_layers_of_the_patch_are_taken_when_the_model_has_them(tmp_path: Path) -> None:
    big, small = make_model(tmp_path / "big", 61), make_model(tmp_path / "small", 8)
    assert layers_for((3, 31, 59), big) == (3, 31, 59)
    assert layers_for((3, 31, 59), small) == (3, 5, 6)
    assert layers_for((), big) == (3, 31, 59)
    assert layers_for((1, 2), "somebody/model-on-the-hub") == (1, 2)
    with pytest.raises(UsageError, match="the depth of somebody/model is not known"):
        layers_for((), "somebody/model")


@pytest.mark.parametrize("path", ["/no/such/folder", "./none", "~/surely/not/here", "a/b/c"])
def test_a_path_that_is_no_model_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="no model folder"):
        check_model_path(path)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json"):
        check_model_path(str(tmp_path))


def test_a_name_on_the_hub_is_left_to_sglang(tmp_path: Path) -> None:
    check_model_path("moonshotai/Kimi-K2.5")
    assert local_model("moonshotai/Kimi-K2.5") == "moonshotai/Kimi-K2.5"
    model = make_model(tmp_path / "m", 8)
    check_model_path(model)
    assert local_model(model) == model


def test_the_default_spool_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_spec, "SHARED_MEMORY", tmp_path)
    cache = CacheLayout(tmp_path / "cache")
    ours = tmp_path / f"auxtap-{os.getuid()}"
    assert default_spool(7, cache) == ours / "7"
    assert ours.stat().st_mode & 0o777 == 0o700
    ours.chmod(0o777)
    assert default_spool(7, cache) == cache.root / "spool" / "7"
    ours.rmdir()
    ours.symlink_to(tmp_path / "elsewhere")
    assert default_spool(7, cache) == cache.root / "spool" / "7"
    monkeypatch.setattr(serve_spec, "SHARED_MEMORY", tmp_path / "none")
    assert default_spool(7, cache) == cache.root / "spool" / "7"


def test_a_python_is_needed(tmp_path: Path) -> None:
    cache = CacheLayout(tmp_path)
    with pytest.raises(ServerError, match="is no Python that can be run"):
        serving_python(tmp_path / "none", "0.5.9", cache, cpu=True)
    with pytest.raises(ServerError, match="is not set up") as caught:
        serving_python(None, "0.5.9", cache, cpu=True)
    assert caught.value.hint == "run auxtap engine setup --release 0.5.9"
    link = tmp_path / "python"
    link.symlink_to("/bin/sh")
    assert serving_python(link, "0.5.9", cache, cpu=False) == link


def test_a_server_that_never_gets_ready_is_the_commands_error(tmp_path: Path) -> None:
    spec = LaunchSpec(
        python=Path("/no/python"),
        tree=tmp_path,
        model_path="m",
        port=0,
        log=tmp_path / "log",
        bytecode=tmp_path / "bytecode",
        spool=tmp_path / "spool",
    )
    with pytest.raises(ServerError, match="cannot start /no/python"):
        run_server(spec, 1.0, restarts=0, json_output=True)
