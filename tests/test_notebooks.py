"""What a notebook gets: stable names, lazily imported, the same answers as the commands."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import auxtap
from auxtap.commands.patching import DEFAULT_LAYERS, DEFAULT_MODELS
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import AuxtapError, PatchError, SourceError, UsageError
from auxtap.rewriters.patch.manifest import read_manifest
from auxtap.tree import PATCH_LAYERS, PATCH_MODELS, OpenTree
from auxtap.verification.static.verdicts import Verified

HEAVY = ("torch", "libcst", "git", "httpx", "numpy", "transformers", "typer", "rich", "safetensors")


@pytest.fixture(scope="module")
def tree() -> OpenTree:
    return auxtap.open_source("pypi:0.5.9")


def test_the_names_are_these() -> None:
    """They are a promise; a change here is a new major version."""
    assert auxtap.__all__ == ["__version__", "open_source", "open_store"]
    assert list(inspect.signature(auxtap.open_source).parameters) == ["spec", "cache", "progress"]
    assert list(inspect.signature(auxtap.open_store).parameters) == ["path", "split"]
    public = {name for name in dir(OpenTree) if not name.startswith("_")}
    assert public == {"trace", "plan", "patch"}
    assert (",".join(map(str, PATCH_LAYERS)), ",".join(PATCH_MODELS)) == (DEFAULT_LAYERS, DEFAULT_MODELS)


def test_importing_it_imports_nothing_heavy() -> None:
    program = f"import sys, auxtap; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.network
def test_a_tree_says_what_it_is(tree: OpenTree) -> None:
    assert (tree.release, tree.origin, len(tree.commit)) == ("0.5.9", "pypi:0.5.9", 40)
    assert len(tree) == len(tree.source.tree.files) > 1000
    assert repr(tree).startswith("OpenTree(origin='pypi:0.5.9', release='0.5.9', commit=")


@pytest.mark.slow
@pytest.mark.network
def test_trace_and_plan_are_those_of_the_commands(tree: OpenTree) -> None:
    report = tree.trace(["llama"])
    assert report.n_unknown == 0
    assert [flow.model for flow in report.flows][:1] == ["LlamaForCausalLM"]
    plan = tree.plan(layers=(2, 5))
    assert plan.layers == (2, 5) and plan.models == PATCH_MODELS
    assert {insertion.kind for insertion in plan.insertions} == {"gate", "rank", "arm", "note", "tap", "stage"}
    with pytest.raises(UsageError):
        tree.plan(models=["no_such_model"])


@pytest.mark.network
def test_a_patch_is_proved_and_can_be_saved(tree: OpenTree, tmp_path: Path) -> None:
    patch = tree.patch()
    assert patch.checks and all(isinstance(verdict, Verified) for verdict in patch.checks)
    folder = patch.save(tmp_path)
    assert folder == tmp_path / "sglang-0.5.9"
    manifest = read_manifest((folder / "manifest.json").read_bytes(), "manifest.json")
    assert (folder / "capture.patch").read_bytes() == patch.data
    assert manifest.patch_sha256 == patch.digest
    assert "+        if _auxtap is not None:\n+            _auxtap.arm(self)\n" in patch.text
    assert patch.level in ("static only", "engine-proved")
    assert "--disable-radix-cache" in patch.server_flags
    with pytest.raises(PatchError, match="cannot write"):
        (tmp_path / "file").touch()
        patch.save(tmp_path / "file" / "below")


def test_errors_are_ours(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        auxtap.open_source("pypi:9.9.9", cache=tmp_path)
    assert issubclass(SourceError, AuxtapError)
    assert caught.value.hint


def test_a_cache_of_ones_own(tmp_path: Path, shared_cache: CacheLayout) -> None:
    said: list[str] = []
    package = tmp_path / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "version.py").write_text('__version__ = "0.5.9"\n')
    (package / "srt/server_args.py").write_text("x = 1\n")
    (package / "__init__.py").touch()
    tree = auxtap.open_source(package, cache=tmp_path / "cache", progress=said.append)
    assert (tree.release, len(tree)) == ("0.5.9", 3)
    assert said and (tmp_path / "cache/sources").is_dir()
    assert not list(shared_cache.sources.glob(f"*{tree.digest[:16]}*"))
