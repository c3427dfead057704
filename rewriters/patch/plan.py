"""Decide everything about a capture patch before one byte of it is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath

from auxtap.core.errors import PatchError
from auxtap.core.source_tree import SRT_ROOT, SourceTree, is_below
from auxtap.rewriters.patch.hazards import HAZARDS_NAME, Decision, decide_hazards, hazard_table
from auxtap.rewriters.patch.kept_setters import kept_setters
from auxtap.rewriters.patch.registry import all_rewriters
from auxtap.rewriters.patch.table import BACKBONES_NAME, backbone_table
from auxtap.rewriters.places.insertion import Insertion
from auxtap.rewriters.places.syntax import ParsedTree
from auxtap.tracer.flow.setters import DraftSetter
from auxtap.tracer.reading.trees import Readings
from auxtap.tracer.report.readings import NOTHING_READ, ModelReadings

TAP_ROOT = SRT_ROOT / "auxtap"


@dataclass(frozen=True)
class NewFile:
    """A file of the tap, which travels with the patch."""

    path: PurePosixPath
    data: bytes


@dataclass(frozen=True)
class CapturePlan:
    """What a patch for one tree inserts, adds and decides.

    `layers` are the capture indices that a server gets by default; the patch itself names none. `insertions` are
    in the order of path and line. `models_read` is what the tracer reads of the model files, `setters` what the model
    classes make of a draft model's ids.
    """

    release: str
    models: tuple[str, ...]
    layers: tuple[int, ...]
    insertions: tuple[Insertion, ...]
    new_files: tuple[NewFile, ...]
    decisions: tuple[Decision, ...]
    setters: tuple[DraftSetter, ...] = ()
    models_read: ModelReadings = NOTHING_READ

    @property
    def server_flags(self) -> tuple[str, ...]:
        """The flags that a server of this tree must be started with."""
        return tuple(flag for decision in self.decisions if decision.verdict == "flag" for flag in decision.flags)

    @property
    def touched(self) -> tuple[PurePosixPath, ...]:
        """The upstream files that get a line, in order."""
        return tuple(sorted({insertion.path for insertion in self.insertions}))


def plan_capture(
    tree: SourceTree, models: Sequence[str], layers: Sequence[int], readings: Readings | None = None
) -> CapturePlan:
    """Find every place in `tree` and return the plan; `readings` keeps what the model files hold.

    Raises:
        PatchError: an anchor is missing or stands twice, or the tree is patched already.
    """
    patched = [path for path in tree.files if is_below(path, TAP_ROOT)]
    if patched:
        raise PatchError(
            f"{tree.origin} is patched already: it holds {patched[0]}",
            hint="give the tree without the patch, for a checkout PATH@REF with the release's tag",
        )
    readings = readings or Readings()
    parsed = ParsedTree(tree, readings)
    setters = kept_setters(tree, readings.folder)
    insertions = [rewriter.propose(parsed) for rewriter in all_rewriters(models, parsed)]
    return CapturePlan(
        release=tree.release,
        models=tuple(models),
        layers=tuple(layers),
        insertions=tuple(sorted(insertions, key=_place)),
        new_files=_tap_files(parsed.readings, insertions, setters),
        decisions=decide_hazards(tree),
        setters=setters,
        models_read=parsed.readings,
    )


def _tap_files(
    read: ModelReadings, insertions: Sequence[Insertion], setters: Sequence[DraftSetter]
) -> tuple[NewFile, ...]:
    """Return the tap with its tables: of the backbones that fit the model files and insertions, and of hazards."""
    tables = {BACKBONES_NAME: backbone_table(read, insertions, setters), HAZARDS_NAME: hazard_table()}
    return tuple(NewFile(file.path, tables.get(file.path.name, file.data)) for file in read_tap_files())


def _place(insertion: Insertion) -> tuple[str, int, str]:
    return str(insertion.path), insertion.line, insertion.kind


def read_tap_files() -> tuple[NewFile, ...]:
    """Return the tap as it is installed beside this package, laid out for the tree.

    Raises:
        PatchError: the installation holds no tap.
    """
    folder = files("auxtap") / "tap"
    found = [
        NewFile(TAP_ROOT / item.name, item.read_bytes())
        for item in folder.iterdir()
        if item.is_file() and item.name.endswith(".py")
    ]
    if TAP_ROOT / "gate.py" not in {file.path for file in found}:
        raise PatchError("this installation of auxtap holds no tap", hint="install auxtap again")
    return tuple(sorted(found, key=lambda file: str(file.path)))
