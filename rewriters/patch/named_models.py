"""Hold the models that a person named against what a patch captures: which of their classes it refuses, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from auxtap.core.errors import PatchError
from auxtap.core.source_tree import MODELS_ROOT, SRT_ROOT, SourceTree
from auxtap.tracer.report.readings import ClassFate


@dataclass(frozen=True)
class RefusedClass:
    """A class of a model's file that a server with the patch refuses: where it stands, and why."""

    model: str
    name: str
    file: PurePosixPath
    line: int
    reason: str

    def __str__(self) -> str:
        where = self.file.relative_to(SRT_ROOT)
        return f"{self.name} ({where}:{self.line}): {self.reason}" if self.name else f"{where}: {self.reason}"


@dataclass(frozen=True)
class RefusedModels:
    """The refused classes of a patch's models; of `none_left` nothing at all is captured."""

    classes: tuple[RefusedClass, ...] = ()
    none_left: tuple[str, ...] = ()

    def of(self, model: str) -> tuple[RefusedClass, ...]:
        """Return the refused classes of one model."""
        return tuple(refused for refused in self.classes if refused.model == model)


def find_refused(
    tree: SourceTree, stems: dict[str, str], fates: Sequence[ClassFate], tapped: frozenset[str]
) -> RefusedModels:
    """Return what a patch refuses of models, given by name with the stem of the file that each means.

    `tapped` are the stems of the files whose loops the patch taps.
    """
    classes: list[RefusedClass] = []
    none_left: list[str] = []
    for model, stem in stems.items():
        path = MODELS_ROOT / f"{stem}.py"
        offered = [fate for fate in fates if fate.file == stem]
        refused = [fate for fate in offered if _is_refused(fate, tapped)]
        classes += [_refused_class(model, path, fate) for fate in refused]
        if offered and len(refused) == len(offered):
            none_left.append(model)
        elif path not in tree.files:
            classes.append(RefusedClass(model, "", path, 1, f"SGLang {tree.release} has no such model"))
            none_left.append(model)
    return RefusedModels(tuple(classes), tuple(none_left))


def _refused_class(model: str, path: PurePosixPath, fate: ClassFate) -> RefusedClass:
    """Cite the line that is objected to, which may stand in another file than the class."""
    at = None if fate.objection is None else fate.objection.at
    where = (path, 1) if at is None else (at.file, at.line)
    return RefusedClass(model, fate.name, *where, _reason(fate))


def _is_refused(fate: ClassFate, tapped: frozenset[str]) -> bool:
    untapped = fate.backbone_file is None or fate.backbone_file.stem not in tapped
    return fate.way == "refused" or (fate.way == "loop" and untapped)


def _reason(fate: ClassFate) -> str:
    if fate.way == "loop":
        return f"its blocks run in a loop of another file, which has to be named too: {fate.reason}"
    return f"{fate.backbone}: {fate.reason}" if fate.backbone else fate.reason


def require_captured(refused: RefusedModels, release: str, consequence: str) -> None:
    """Refuse a patch that captures nothing of a model that was named.

    Raises:
        PatchError: it does; names class, file, line and reason.
    """
    if refused.none_left:
        model = refused.none_left[0]
        why = "; ".join(map(str, refused.of(model)))
        others = "" if len(refused.none_left) == 1 else f" (and of {', '.join(refused.none_left[1:])})"
        raise PatchError(
            f"nothing of {model}{others} can be captured in SGLang {release}{consequence}: {why}",
            hint="auxtap patch --classes SOURCE says which classes can be, and how",
        )
