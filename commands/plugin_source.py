"""What `serve --plugin` needs to know of the SGLang that a Python has: found without importing it."""

import subprocess
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from auxtap.core.errors import PatchError, ServerError, SourceError
from auxtap.core.source_tree import PACKAGE_ROOT, SourceTree
from auxtap.serving.plugin.patches import FittingPatch, PluginRefusedError, find_fitting_patch

if TYPE_CHECKING:
    from auxtap.tracer.hazards.plugin_way import PluginWay

_PLUGIN_FILES = ("srt/plugins/__init__.py", "srt/managers/scheduler.py")
_WHERE = (
    "import importlib.util, sys; spec = importlib.util.find_spec('sglang'); "
    "sys.exit(1) if spec is None else print(next(iter(spec.submodule_search_locations)))"
)


def find_plugin_source(python: Path, patch: Path | None) -> FittingPatch:
    """Return the patch that the plugin is going to use in the SGLang of a Python.

    Raises:
        ServerError: there is no SGLang, or Python cannot be run.
        SourceError: that SGLang loads no plugins.
        PatchError: no patch fits it.
    """
    package = _find_package(python)
    way = _plugin_way(package)
    if way.state != "open":
        raise SourceError(
            f"{package}: {way.fact.text}", hint="auxtap apply SOURCE --worktree DIR makes a patched tree to serve"
        )
    try:
        return find_fitting_patch(package, patch)
    except PluginRefusedError as error:
        raise PatchError(
            str(error), hint=f"auxtap patch {package} --out DIR writes one; then --plugin-patch DIR/sglang-RELEASE"
        ) from None


def _find_package(python: Path) -> Path:
    try:
        # From the root folder: a folder called sglang in this one would be found first.
        done = subprocess.run([python, "-c", _WHERE], capture_output=True, text=True, timeout=60, cwd="/")
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerError(f"cannot run {python}: {error}", hint="name a Python with --python") from None
    if done.returncode != 0:
        raise ServerError(f"{python} has no SGLang", hint="name with --python the one whose environment has it")
    return Path(done.stdout.strip())


def _plugin_way(package: Path) -> "PluginWay":
    from auxtap.tracer.hazards.plugin_way import find_plugin_way

    files = {PACKAGE_ROOT / name: package / name for name in _PLUGIN_FILES}
    data: dict[PurePosixPath, bytes] = {name: path.read_bytes() for name, path in files.items() if path.is_file()}
    return find_plugin_way(SourceTree("", str(package), "", data))
