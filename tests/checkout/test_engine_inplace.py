"""An installed SGLang, patched where it lies and served by the Python that it is installed for."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from auxtap.checkout.inplace import patch_package, restore_package
from auxtap.checkout.releases import find_release
from auxtap.checkout.source import open_source
from auxtap.checkout.wheel import fetch_wheel
from auxtap.commands.serve_spec import Wanted, patched_spec
from auxtap.core.cache import CacheLayout
from auxtap.core.files import sha256_file
from auxtap.rewriters.patch.diff import write_patch
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.rewriters.patch.registry import DEFAULT_MODELS
from auxtap.serving.engine_env import EngineEnvironment
from auxtap.serving.server import be_silent
from auxtap.tests.real_server import assert_serves_right_states
from auxtap.verification.engine.tiny_models import TINY_LAYERS, make_tiny_models

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@pytest.fixture
def python(engine: EngineEnvironment, shared_cache: CacheLayout, tmp_path: Path) -> Path:
    """Return the Python of an environment that has SGLang 0.5.9 from its wheel, and all else from the engine's."""
    python = tmp_path / "env/bin/python"
    subprocess.run([str(engine.python), "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (packages_of(python) / "engine.pth").write_text(f"{packages_of(engine.python)}\n")
    with zipfile.ZipFile(fetch_wheel(find_release("0.5.9"), shared_cache, be_silent)) as wheel:
        wheel.extractall(packages_of(python))
    return python


def packages_of(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip())


def test_an_installed_package_patched_in_place_serves_the_right_states(
    python: Path, engine: EngineEnvironment, shared_cache: CacheLayout, tmp_path: Path
) -> None:
    released = open_source("pypi:0.5.9", shared_cache).tree
    package = packages_of(python) / "sglang"
    before = {path: sha256_file(path) for path in package.rglob("*.py")}
    source = open_source(str(package), shared_cache)
    patch_set = write_patch(source.tree, plan_capture(source.tree, DEFAULT_MODELS, TINY_LAYERS))
    patch_package(source, patch_set, package, released)

    (model,) = make_tiny_models(("llama",), engine, shared_cache)
    wanted = Wanted(
        python=python, layers=None, final=None, cpu=True, spool=tmp_path / "spool", host="127.0.0.1", port=0,
        log=tmp_path / "server.log", extra=(),
    )  # fmt: skip
    spec = patched_spec(package, str(model.path), wanted)
    assert spec.tree is None and spec.layers == TINY_LAYERS
    assert_serves_right_states(spec, tmp_path, engine.python)

    restore_package(package)
    assert {path: sha256_file(path) for path in package.rglob("*.py")} == before
