"""Read the model files of a tree, and keep what was read, so that no tree is read twice."""

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from auxtap.core.collector import collector_paused
from auxtap.core.errors import SourceError
from auxtap.core.kept import KeptEntries
from auxtap.core.source_tree import MODELS_ROOT, SRT_ROOT, SourceTree, digest_below
from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.reading.blocks import BlockAnswers
from auxtap.tracer.reading.fates import Fates
from auxtap.tracer.reading.file_reading import read_file
from auxtap.tracer.report.readings import ModelReadings, Reading

_GROUP = "readings"
# What a block calls stands there; a reading depends on these files and on those of the models.
_LAYERS_ROOT = SRT_ROOT / "layers"
_NEEDLES = (b".layers", b"logits_processor(")


class Readings:
    """Readings of trees, kept below `folder` (None: only the last ones, in memory)."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._entries = KeptEntries(folder, Path(__file__).parent.parent)
        self._last: tuple[SourceTree, ModelReadings] | None = None

    def of(self, tree: SourceTree) -> ModelReadings:
        """Return what every model file of the tree holds, in order; files that are not Python are left out."""
        if self._last is None or self._last[0] is not tree:
            self._last = tree, self._find_or_make(tree)
        return self._last[1]

    def _find_or_make(self, tree: SourceTree) -> ModelReadings:
        key = digest_below(tree, MODELS_ROOT, _LAYERS_ROOT)
        kept = self._entries.read(_GROUP, key, ModelReadings)
        if kept is None:
            with collector_paused():
                index = ClassIndex(tree)
                readings = tuple(read_models(index, index.model_files))
                kept = ModelReadings(readings, Fates(index, readings).all())
            self._entries.write(_GROUP, key, kept)
        return kept


def read_models(index: ClassIndex, paths: Iterable[PurePosixPath]) -> Iterator[Reading]:
    """Yield the readings of these model files, in order."""
    answers = BlockAnswers.of(index)
    for path in paths:
        if any(needle in index.tree.files[path] for needle in _NEEDLES):
            try:
                yield from tuple(read_file(index.source(path), answers))
            except (SourceError, RecursionError):
                continue
