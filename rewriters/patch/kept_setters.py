"""Keep what the setters of a tree's model classes make of a draft model's ids, so that no tree is traced twice."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from auxtap.core.kept import KeptEntries
from auxtap.core.source_tree import MODELS_ROOT, SourceTree, is_below
from auxtap.tracer import tracing
from auxtap.tracer.flow.setters import DraftSetter
from auxtap.tracer.source.names import names_digest

_GROUP = "setters"


@dataclass(frozen=True)
class _Kept:
    setters: tuple[DraftSetter, ...]


def kept_setters(tree: SourceTree, folder: Path | None) -> tuple[DraftSetter, ...]:
    """Return the setters of the model classes, from what is kept below `folder` where they were found before."""
    entries = KeptEntries(folder, Path(tracing.__file__).parent, names_digest())
    made_from = hashlib.sha256()
    for path in sorted(path for path in tree.files if is_below(path, MODELS_ROOT)):
        data = tree.files[path]
        made_from.update(f"{path}\0{len(data)}\0".encode(errors="surrogateescape") + data)
    key = made_from.digest()
    kept = entries.read(_GROUP, key, _Kept)
    if kept is None:
        kept = _Kept(tracing.trace_setters(tree))
        entries.write(_GROUP, key, kept)
    return kept.setters
