"""What becomes of every causal language model class of a tree: captured, and how, or refused and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from auxtap.rewriters.backbones.backbones import BackboneSurvey
from auxtap.rewriters.backbones.module_classes import ModelClass
from auxtap.rewriters.backbones.surveys import ModelFile

Way = Literal["native", "arm", "loop", "refused"]
_CAUSAL = ("CausalLM", "ConditionalGeneration", "LMHeadModel")
_DRAFTS = ("NextN", "MTP", "Eagle", "Eagle3", "DFlash", "DSpark")
_SETTER = "set_eagle3_layers_to_capture"
_MAX_DEPTH = 5


@dataclass(frozen=True)
class ClassFate:
    """One class that SGLang offers to load.

    `native`: it has SGLang's own setter. `arm`: it has none, but what it wraps captures, and the tap chooses the
    layers there. `loop`: its backbone captures nothing and a line in the loop can (`--model <file>`). `refused`:
    neither; `reason` says why.
    """

    name: str
    file: str
    way: Way
    backbone: str
    reason: str


@dataclass(frozen=True, eq=False)
class _Class:
    """A class and the file that it stands in."""

    path: PurePosixPath
    read: ModelClass

    @property
    def name(self) -> str:
        return self.read.name


@dataclass
class _Graph:
    """Classes by file and name, and which names each file imports from which other."""

    classes: dict[tuple[PurePosixPath, str], _Class] = field(default_factory=dict)
    by_name: dict[str, list[_Class]] = field(default_factory=dict)
    imports: dict[PurePosixPath, Mapping[str, str]] = field(default_factory=dict)
    entries: list[_Class] = field(default_factory=list)
    surveys: dict[PurePosixPath, BackboneSurvey] = field(default_factory=dict)

    def find(self, name: str, near: PurePosixPath) -> _Class | None:
        local = self.classes.get((near, name))
        if local is not None:
            return local
        candidates = self.by_name.get(name, [])
        module = self.imports.get(near, {}).get(name)
        imported = [found for found in candidates if module is not None and found.path.stem == module]
        if imported:
            return imported[0]
        return candidates[0] if len(candidates) == 1 else None

    def lineage(self, found: _Class) -> list[_Class]:
        lineage = [found]
        for current in lineage:
            parents = [self.find(base, current.path) for base in current.read.bases]
            lineage += [parent for parent in parents if parent is not None and parent not in lineage]
        return lineage


def classify_classes(files: Sequence[ModelFile]) -> tuple[ClassFate, ...]:
    """Return the fate of every causal language model class that a tree's model files hold, by name."""
    graph = _read_graph(files)
    entries = {found.name: found for found in graph.entries if any(word in found.name for word in _CAUSAL)}
    return tuple(_fate(graph, entries[name]) for name in sorted(entries))


def _read_graph(files: Sequence[ModelFile]) -> _Graph:
    graph = _Graph()
    for file in files:
        graph.surveys[file.path] = file.survey
        graph.imports[file.path] = file.classes.imports
        for read in file.classes.classes:
            found = graph.classes[file.path, read.name] = _Class(file.path, read)
            graph.by_name.setdefault(read.name, []).append(found)
            if read.name in file.classes.offered:
                graph.entries.append(found)
    return graph


def _fate(graph: _Graph, entry: _Class) -> ClassFate:
    if entry.name.endswith(_DRAFTS) or any(entry.path.stem.endswith(f"_{word.lower()}") for word in _DRAFTS):
        return ClassFate(entry.name, entry.path.stem, "refused", "", "a draft model is never the served one")
    reached: dict[str, tuple[_Class, bool]] = {}
    _reach(graph, entry, False, 0, reached)
    captures, loops, refused = _sorted_out(graph, reached)
    native = any(_SETTER in found.read.methods for found in graph.lineage(entry))
    file = entry.path.stem
    if captures:
        backbone, flagged = next(iter(captures.items()))
        if not flagged:
            reason = f"nothing in it unpacks what {backbone} captures"
            return ClassFate(entry.name, file, "refused", backbone, reason)
        return ClassFate(entry.name, file, "native" if native else "arm", backbone, "")
    if loops:
        return ClassFate(entry.name, file, "loop", next(iter(loops)), f"--model {next(iter(loops.values()))}")
    if refused:
        # A tower for pictures or sound beside the language model is never the reason.
        backbone, reason = min(refused.items(), key=_is_tower)
        return ClassFate(entry.name, file, "refused", backbone, reason)
    return ClassFate(entry.name, file, "refused", "", "no loop over decoder blocks was found in what it is made of")


def _is_tower(refused: tuple[str, str]) -> bool:
    return any(word in refused[0] for word in ("Vision", "Encoder", "Audio"))


def _reach(graph: _Graph, found: _Class, flagged: bool, depth: int, reached: dict[str, tuple[_Class, bool]]) -> None:
    """Gather every class that `found` makes, and whether one on the way to it unpacks captured states."""
    key = f"{found.path}:{found.name}"
    lineage = graph.lineage(found)
    if depth > _MAX_DEPTH or (key in reached and (reached[key][1] or not flagged)):
        return
    reached[key] = found, flagged
    flagged = flagged or any(item.read.has_flag for item in lineage)
    for item in lineage:
        for name in item.read.makes:
            made = graph.find(name, item.path)
            if made is not None and made is not found:
                _reach(graph, made, flagged, depth + 1, reached)


def _sorted_out(
    graph: _Graph, reached: Mapping[str, tuple[_Class, bool]]
) -> tuple[dict[str, bool], dict[str, str], dict[str, str]]:
    captures: dict[str, bool] = {}
    loops: dict[str, str] = {}
    refused: dict[str, str] = {}
    for found, flagged in reached.values():
        definer = next((item for item in graph.lineage(found) if "forward" in item.read.methods), found)
        survey = graph.surveys[definer.path]
        if any(capture.class_name == definer.name for capture in survey.captures):
            captures[found.name] = captures.get(found.name, False) or flagged
        elif any(loop.plain.class_name == definer.name for loop in survey.loops):
            loops[found.name] = definer.path.stem
        elif definer.name in survey.refused:
            refused[found.name] = survey.refused[definer.name]
    return captures, loops, refused
