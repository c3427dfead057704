"""Make the workplace of a node that serves with the CPU engine; shared by the engine tests of this folder."""

import contextlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from auxtap.checkout.source import open_source
from auxtap.core.cache import CacheLayout
from auxtap.serving.engine_env import EngineEnvironment
from auxtap.tests.node.conftest import TestNode, Workplace
from auxtap.verification.engine.tiny_models import make_tiny_models

MODEL = "kimi_k25"


def make_workplace(node: TestNode, engine: EngineEnvironment, cache: CacheLayout) -> Workplace:
    """Put SGLang, the engine's Python and a tiny model where the node's user can read them."""
    place = node.folder / "work"
    place.mkdir(mode=0o755)
    sglang = place / 'it\'s SGLang "0.5.9"'
    _export(cache, sglang)
    python = _share_engine(node, engine, place / "engine")
    (model,) = make_tiny_models([MODEL], engine, cache)
    shared_model = place / "tiny model"
    shutil.copytree(model.path, shared_model)
    _open(shared_model)
    root = node.folder / 'node\'s "own" folder'
    root.mkdir(mode=0o700)
    _warm_bytecode(engine, cache, python, root / "bytecode")
    node.own(root)
    return Workplace(node, sglang, python, shared_model, root)


def _export(cache: CacheLayout, target: Path) -> None:
    source = open_source("pypi:0.5.9", cache)
    target.mkdir()
    archive = target.with_name("sglang.tar")
    command = ["git", "-C", str(source.repository), "archive", f"--output={archive}", source.commit]
    subprocess.run(command, check=True)
    with tarfile.open(archive) as files:
        files.extractall(target, filter="data")
    archive.unlink()
    _open(target)


def _share_engine(node: TestNode, engine: EngineEnvironment, target: Path) -> Path:
    """Return a Python of the engine environment that another user can run."""
    if os.geteuid() != 0:
        return engine.python
    _link_tree(engine.folder, target)
    base = _shared_base(node, engine, target)
    python = target / "bin" / "python"
    for name in ("python", "python3", base.name):
        (target / "bin" / name).unlink(missing_ok=True)
        (target / "bin" / name).symlink_to(base)
    settings = target / "pyvenv.cfg"
    # Replaced, not written into: the file is shared with the environment that it was linked from.
    settings.unlink()
    settings.write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    return python


def _shared_base(node: TestNode, engine: EngineEnvironment, target: Path) -> Path:
    """Return the Python under the environment, one like it, or a copy of it: what the node's user can run."""
    own = engine.python.resolve()
    name = f"python{'.'.join(engine.python_version.split('.')[:2])}"
    for candidate in (own, Path("/usr/bin", name)):
        with contextlib.suppress(subprocess.CalledProcessError):
            node.run_as(str(candidate), "-c", "import ssl, ctypes, sqlite3")
            return candidate
    copy = target.with_name("python")
    _link_tree(own.parent.parent, copy)
    return copy / "bin" / own.name


def _link_tree(source: Path, target: Path) -> None:
    if subprocess.run(["cp", "-al", str(source), str(target)], capture_output=True).returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, symlinks=True)


def _warm_bytecode(engine: EngineEnvironment, cache: CacheLayout, python: Path, bytecode: Path) -> None:
    """Bring along the bytecode of the engine's packages, which are the same files: a cold start takes minutes."""
    compiled = cache.bytecode / "sglang-0.5.9" / str(engine.folder)[1:]
    target = bytecode / str(python.parent.parent)[1:]
    if compiled.is_dir() and not target.exists():
        shutil.copytree(compiled, target)


def _open(folder: Path) -> None:
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
