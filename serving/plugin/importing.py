"""Serve the tap's modules out of the patch, and change what the patch changes as soon as it is imported."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path, PurePosixPath
from types import CodeType, ModuleType

from auxtap.serving.plugin.patches import FittingPatch, PatchedSource, PluginRefusedError
from auxtap.serving.plugin.swapping import put_in

TAP_PACKAGE = "sglang.srt.auxtap"


def install(fitting: FittingPatch, package: Path) -> None:
    """Change the modules that are imported already; see to the others when they are.

    Raises:
        PluginRefusedError: a function in memory is not the one in its file.
    """
    sources = {module_name(path): source for path, source in fitting.sources.items()}
    tap = {module_name(path): data for path, data in fitting.new_files.items()}
    # First of all finders: the gate line of a changed module imports the tap.
    sys.meta_path.insert(0, PatchFinder(tap, sources, package))
    for name, source in sources.items():
        module = sys.modules.get(name)
        if module is not None:
            put_in(module, source)


def module_name(path: PurePosixPath) -> str:
    """Return the dotted name of a file of the tree: `python/sglang/srt/a.py` is `sglang.srt.a`."""
    parts = path.with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class PatchFinder(importlib.abc.MetaPathFinder):
    """Finds the modules that the patch adds or changes, by dotted name, and no other."""

    def __init__(self, tap: Mapping[str, bytes], sources: Mapping[str, PatchedSource], package: Path) -> None:
        self._tap = tap
        self._sources = sources
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the patch; None for every other."""
        if fullname in self._tap:
            loader = TapLoader(self._tap[fullname], is_package=fullname == TAP_PACKAGE)
            return importlib.util.spec_from_loader(fullname, loader, is_package=fullname == TAP_PACKAGE)
        source = self._sources.get(fullname)
        if source is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
            raise SystemExit(f"auxtap: refused: {fullname} is not imported from a source file")
        spec.loader = ChangingLoader(fullname, spec.origin, source)
        return spec


class TapLoader(importlib.abc.InspectLoader):
    """Loads one module of the tap from its bytes."""

    def __init__(self, data: bytes, *, is_package: bool) -> None:
        self._data = data
        self._is_package = is_package

    def get_source(self, fullname: str) -> str:
        """Return the text; tracebacks show it too."""
        return self._data.decode()

    def is_package(self, fullname: str) -> bool:
        """Tell whether it is the package itself."""
        return self._is_package

    def get_code(self, fullname: str) -> CodeType:
        """Compile it under a name that says where it came from."""
        return self.source_to_code(self._data, f"<auxtap: {fullname}>")


class ChangingLoader(SourceFileLoader):
    """Loads a module of SGLang as ever, then changes the functions that the patch changes."""

    def __init__(self, fullname: str, path: str, source: PatchedSource) -> None:
        super().__init__(fullname, path)
        self._patched = source

    def exec_module(self, module: ModuleType) -> None:
        """Run the module and change it."""
        super().exec_module(module)
        try:
            put_in(module, self._patched)
        except PluginRefusedError as error:
            # SGLang passes over model files that fail to import; this one must not be passed over.
            raise SystemExit(f"auxtap: refused: {error}") from None
