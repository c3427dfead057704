"""What becomes of every causal language model class of a tree: captured, and how, or refused and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from auxtap.tracer.flow.classes import ClassIndex, FoundClass
from auxtap.tracer.report.readings import ClassFate, Objection, Reading

_CAUSAL = ("CausalLM", "ConditionalGeneration", "LMHeadModel")
_DRAFTS = ("NextN", "MTP", "Eagle", "Eagle3", "DFlash", "DSpark")
_SETTER = "set_eagle3_layers_to_capture"
_FLAG = "capture_aux_hidden_states"
_TOWERS = ("Vision", "Encoder", "Audio")
_MAX_DEPTH = 5
_MAX_WRAPS = 2


@dataclass(frozen=True, eq=False)
class Fates:
    """Works out what becomes of classes from the readings of what they are made of."""

    index: ClassIndex
    readings: Sequence[Reading]

    def all(self) -> tuple[ClassFate, ...]:
        """Return the fate of every causal language model class that the model files offer, by name."""
        offered = (found for path in self.index.model_files for found in self.index.entry_classes(path))
        entries = {found.name: found for found in offered if any(word in found.name for word in _CAUSAL)}
        return tuple(self._fate(entries[name]) for name in sorted(entries))

    @cached_property
    def _by_class(self) -> dict[tuple[PurePosixPath, str], list[Reading]]:
        found: dict[tuple[PurePosixPath, str], list[Reading]] = {}
        for reading in self.readings:
            found.setdefault((reading.file, reading.class_name), []).append(reading)
        return found

    def _fate(self, entry: FoundClass) -> ClassFate:
        file = entry.file.stem
        if entry.name.endswith(_DRAFTS) or any(file.endswith(f"_{word.lower()}") for word in _DRAFTS):
            return ClassFate(entry.name, file, "refused", "", "a draft model is never the served one")
        lineage = self.index.lineage(entry)
        if objection := next(self._objections_to(lineage), None):
            return ClassFate(entry.name, file, "refused", entry.name, objection.reason, objection, objection.at.file)
        backbones = self._backbones(entry, follow=False) or self._backbones(entry, follow=True)
        captures = [each for each in backbones if each.is_a("native")]
        if captures:
            chosen, place = captures[0], captures[0].read[0].file
            if not any(each.flagged for each in captures if each.name == chosen.name):
                reason = f"nothing in it unpacks what {chosen.name} captures"
                return ClassFate(entry.name, file, "refused", chosen.name, reason, None, place)
            native = any(_SETTER in found.outline.methods for found in lineage)
            return ClassFate(entry.name, file, "native" if native else "arm", chosen.name, "", None, place)
        for each in backbones:
            if each.is_a("loop"):
                place = each.read[0].file
                return ClassFate(entry.name, file, "loop", each.name, f"--model {place.stem}", None, place)
        if backbones:
            # A tower for pictures or sound beside the language model is never the reason.
            chosen = min(backbones, key=lambda each: any(word in each.name for word in _TOWERS))
            objection = chosen.read[0].objections[0]
            place = chosen.read[0].file
            return ClassFate(entry.name, file, "refused", chosen.name, objection.reason, objection, place)
        return ClassFate(entry.name, file, "refused", "", "no loop over decoder blocks was found in what it is made of")

    def _backbones(self, entry: FoundClass, *, follow: bool) -> list["_Backbone"]:
        """Return what an entry is made of that runs blocks; `follow` looks through arguments and factories too."""
        reached: dict[FoundClass, bool] = {}
        self._reach(entry, False, 0, reached, follow)
        found = (_Backbone(each.name, flagged, tuple(self._read(each))) for each, flagged in reached.items())
        return [each for each in found if each.read]

    def _objections_to(self, lineage: Sequence[FoundClass]) -> Iterator[Objection]:
        """Yield what is objected to in how an entry hands on states."""
        for found in lineage:
            for reading in self._by_class.get((found.file, found.name), ()):
                yield from reading.objections if reading.kind == "head" else ()

    def _read(self, found: FoundClass) -> list[Reading]:
        """Return the readings of the class that defines the forward of a class, those with an objection first."""
        lineage = self.index.lineage(found)
        definer = next((item for item in lineage if "forward" in item.outline.methods), found)
        read = [item for item in self._by_class.get((definer.file, definer.name), ()) if item.kind != "head"]
        return sorted(read, key=lambda item: not item.objections)

    def _reach(
        self, found: FoundClass, flagged: bool, depth: int, reached: dict[FoundClass, bool], follow: bool
    ) -> None:
        """Gather every class that `found` makes, and whether one on the way to it unpacks captured states."""
        lineage = self.index.lineage(found)
        if depth > _MAX_DEPTH or (found in reached and (reached[found] or not flagged)):
            return
        reached[found] = flagged
        flagged = flagged or any(self._has_flag(item) for item in lineage)
        named = (self.index.find(name, item.file) for item in lineage for name in item.outline.makes)
        # What stands in an argument is at the entry, or in what wraps the language model there.
        built = (member.found for member in self.index.members(found)) if follow and depth < _MAX_WRAPS else ()
        for made in (*named, *built):
            if made is not None and made != found:
                self._reach(made, flagged, depth + 1, reached, follow)

    def _has_flag(self, found: FoundClass) -> bool:
        lines = self.index.source(found.file).outline.lines
        return any(_FLAG in line for line in lines[found.outline.line - 1 : found.outline.last_line])


@dataclass(frozen=True)
class _Backbone:
    """A class that runs blocks, its readings, and whether one on the way to it unpacks captured states."""

    name: str
    flagged: bool
    read: tuple[Reading, ...]

    def is_a(self, kind: str) -> bool:
        """Tell whether nothing is objected to, and it is of this kind."""
        return not self.read[0].objections and self.read[0].kind == kind
