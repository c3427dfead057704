"""An unpatched SGLang that loads plugins, and the patch that the plugin is to use."""

import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from auxtap.checkout.publication import publish_patch
from auxtap.checkout.source import Source, open_source
from auxtap.core.cache import CacheLayout
from auxtap.core.version import __version__
from auxtap.rewriters.patch.diff import PatchSet, write_patch
from auxtap.rewriters.patch.manifest import Origin, manifest_bytes
from auxtap.rewriters.patch.plan import plan_capture

LAYERS = (2, 3, 6)


@dataclass(frozen=True)
class PluginCase:
    """A release's tree as it was released, and a written patch for it beside it."""

    source: Source
    patch_set: PatchSet
    tree: Path
    patch_folder: Path

    @property
    def package(self) -> Path:
        return self.tree / "python/sglang"


def make_plugin_case(release: str, cache: CacheLayout, folder: Path) -> PluginCase:
    source = open_source(f"pypi:{release}", cache)
    patch_set = write_patch(source.tree, plan_capture(source.tree, ("deepseek", "llama"), LAYERS))
    manifest = manifest_bytes(patch_set, Origin(source.kind, source.digest), __version__, ())
    files = publish_patch(folder / "patches", release, patch_set.patch, manifest)
    archive = subprocess.run(
        ["git", "-C", str(source.repository), "archive", source.commit], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder / "tree", filter="data")
    return PluginCase(source, patch_set, folder / "tree", files.patch.parent)


@pytest.fixture(scope="session")
def plugin_case(shared_cache: CacheLayout, tmp_path_factory: pytest.TempPathFactory) -> PluginCase:
    """SGLang 0.5.14, which loads plugins."""
    return make_plugin_case("0.5.14", shared_cache, tmp_path_factory.mktemp("plugin"))
