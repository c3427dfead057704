"""Keep what the setters of a tree's model classes make of a draft model's ids, so that no tree is traced twice."""

from dataclasses import dataclass
from pathlib import Path

from auxtap.core import draft_ids
from auxtap.core.kept import KeptEntries
from auxtap.core.source_tree import MODELS_ROOT, SourceTree, digest_below
from auxtap.tracer import tracing
from auxtap.tracer.flow.setters import DraftSetter
from auxtap.tracer.source.names import names_digest

_GROUP = "setters"


@dataclass(frozen=True)
class _Kept:
    setters: tuple[DraftSetter, ...]


def kept_setters(tree: SourceTree, folder: Path | None) -> tuple[DraftSetter, ...]:
    """Return the setters of the model classes, from what is kept below `folder` where they were found before."""
    # Its rules are of a module beside the tracer's.
    rules = Path(draft_ids.__file__).read_bytes()
    entries = KeptEntries(folder, Path(tracing.__file__).parent, rules + names_digest())
    key = digest_below(tree, MODELS_ROOT)
    kept = entries.read(_GROUP, key, _Kept)
    if kept is None:
        kept = _Kept(tracing.trace_setters(tree))
        entries.write(_GROUP, key, kept)
    return kept.setters
