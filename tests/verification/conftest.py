"""One patched tree, one import of SGLang and one set of tiny models for all engine tests of this folder."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auxtap.checkout.source import Source, open_source
from auxtap.checkout.worktree import AppliedWorktree, apply_patch, revert
from auxtap.core.cache import CacheLayout
from auxtap.rewriters.patch.diff import PatchSet, write_patch
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.serving.engine_env import EngineEnvironment
from auxtap.serving.processes import choose_port
from auxtap.serving.profile import LOOPBACK, LaunchSpec
from auxtap.verification.engine.engine_proof import launch_template
from auxtap.verification.engine.fork_server import ForkServer
from auxtap.verification.engine.tiny_models import TINY_MODELS, make_tiny_models

SpecMaker = Callable[..., LaunchSpec]


@pytest.fixture(scope="session")
def pinned_source(shared_cache: CacheLayout) -> Source:
    """The released SGLang 0.5.9."""
    return open_source("pypi:0.5.9", shared_cache)


@pytest.fixture(scope="session")
def pinned_patch(pinned_source: Source) -> PatchSet:
    """The capture patch of every model that has pipeline stages."""
    return write_patch(pinned_source.tree, plan_capture(pinned_source.tree, ("all",), (3, 31, 59)))


@pytest.fixture(scope="session")
def patched(
    pinned_source: Source, pinned_patch: PatchSet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AppliedWorktree]:
    """SGLang 0.5.9 with the capture patch, in a worktree of its own."""
    applied = apply_patch(pinned_source, pinned_patch, tmp_path_factory.mktemp("patched") / "tree")
    yield applied
    revert(applied.path, force=True)


@pytest.fixture(scope="session")
def tiny(engine: EngineEnvironment, shared_cache: CacheLayout) -> Mapping[str, Path]:
    """The tiny models by name."""
    return {model.name: model.path for model in make_tiny_models(TINY_MODELS, engine, shared_cache)}


@pytest.fixture(scope="session")
def template(
    patched: AppliedWorktree,
    engine: EngineEnvironment,
    shared_cache: CacheLayout,
    tmp_path_factory: pytest.TempPathFactory,
) -> LaunchSpec:
    """What the servers of all tests share."""
    folder = tmp_path_factory.mktemp("fork-server")
    return replace(launch_template(patched, engine, shared_cache, folder / "spool"), log=folder / "import.log")


@pytest.fixture(scope="session")
def fork_server(template: LaunchSpec) -> Iterator[ForkServer]:
    """A process that has imported the patched SGLang once."""
    with ForkServer(template) as server:
        yield server


@pytest.fixture
def make_spec(template: LaunchSpec, tiny: Mapping[str, Path], tmp_path: Path) -> SpecMaker:
    """Return a function from a tiny model and changes to the spec of a server with a spool and log of its own."""

    def make(model: str = "llama", **changes: Any) -> LaunchSpec:
        spec = replace(
            template,
            model_path=str(tiny[model]),
            port=choose_port(LOOPBACK, 0),
            spool=tmp_path / "spool",
            log=tmp_path / "server.log",
        )
        return replace(spec, **changes)

    return make
