"""Survey the model files of a tree, and keep what was found, so that no tree is surveyed twice."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from auxtap.core.kept import KeptEntries
from auxtap.core.source_tree import MODELS_ROOT, SourceTree, is_below
from auxtap.rewriters.backbones.backbones import BackboneSurvey, survey_backbones
from auxtap.rewriters.backbones.module_classes import ModuleClasses, read_classes

_GROUP = "surveys"


@dataclass(frozen=True)
class ModelFile:
    """What one model file holds: the classes that run blocks, and all classes."""

    path: PurePosixPath
    survey: BackboneSurvey
    classes: ModuleClasses


@dataclass(frozen=True)
class _Kept:
    files: tuple[ModelFile, ...]


class Surveys:
    """Surveys of trees, kept below `folder` (None: only the last one, in memory)."""

    def __init__(self, folder: Path | None = None) -> None:
        self._entries = KeptEntries(folder, Path(__file__).parents[1])
        self._last: tuple[SourceTree, tuple[ModelFile, ...]] | None = None

    def of(self, tree: SourceTree) -> tuple[ModelFile, ...]:
        """Return what each model file holds, in order; files that are not Python are left out."""
        if self._last is None or self._last[0] is not tree:
            self._last = tree, self._find_or_make(tree)
        return self._last[1]

    def _find_or_make(self, tree: SourceTree) -> tuple[ModelFile, ...]:
        paths = sorted(path for path in tree.files if is_below(path, MODELS_ROOT))
        models = [(path, tree.files[path]) for path in paths]
        made_from = hashlib.sha256()
        for path, data in models:
            made_from.update(f"{path}\0{len(data)}\0".encode(errors="surrogateescape") + data)
        key = made_from.digest()
        kept = self._entries.read(_GROUP, key, _Kept)
        if kept is None:
            kept = _Kept(tuple(_survey(models)))
            self._entries.write(_GROUP, key, kept)
        return kept.files


def _survey(models: list[tuple[PurePosixPath, bytes]]) -> Iterator[ModelFile]:
    for path, data in models:
        try:
            yield ModelFile(path, survey_backbones(data), read_classes(data))
        except SyntaxError:
            continue
