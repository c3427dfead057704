"""What the tracer reads of each class that runs decoder blocks, as data; imports nothing that parses."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from auxtap.tracer.report.entries import JsonValue

# What is taken: the sum of what the block is given (one state where there is no residual yet), the gather of that sum
# over the rows of the ranks, a copy of the one state where no residual stands beside it, or the collector is handed
# into the block, which takes the sum there.
Form = Literal["sum", "gather", "state", "in_block"]
# When: before block i; behind block i where entry i + 1 is asked for; within block i; behind the last block.
When = Literal["before", "next", "within", "behind_last"]
Kind = Literal["native", "loop", "head"]
# The list of layers that the tap fills.
LAYER_LIST = "layers_to_capture"


@dataclass(frozen=True)
class SourceLine:
    """A line that is cited."""

    file: PurePosixPath
    line: int
    scope: str
    code: str

    def to_json(self) -> dict[str, JsonValue]:
        """Return it as data."""
        return {"file": str(self.file), "line": self.line, "scope": self.scope, "code": self.code}


@dataclass(frozen=True)
class CapturePlace:
    """A place that takes a state.

    An entry of the layer list plus `shift` is the capture index. `conditions` are the tests beside that of the layer
    under which it is reached; `inside` are the lines within the block on the way to where a handed collector takes.
    """

    at: SourceLine
    form: Form
    when: When
    shift: int
    conditions: tuple[str, ...] = ()
    inside: tuple[SourceLine, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return it as data."""
        return {
            **self.at.to_json(),
            "form": self.form,
            "when": self.when,
            "shift": self.shift,
            "conditions": list(self.conditions),
            "inside": [line.to_json() for line in self.inside],
        }


@dataclass(frozen=True)
class Objection:
    """Why a class is not captured: what was not understood, and where."""

    at: SourceLine
    reason: str

    def to_json(self) -> dict[str, JsonValue]:
        """Return it as data."""
        return {**self.at.to_json(), "reason": self.reason}


@dataclass(frozen=True)
class Reading:
    """One function that runs decoder blocks, or hands on their states; with objections its class is not captured.

    `kind` is `native` where it captures by itself, `loop` where a line at the top of a round (`first_line`) can, `head`
    where it hands on what a backbone captured, in a way that is objected to.
    `hidden` and `residual` are the names that the block is given, `layers` the list that chooses, `mark` the mark that
    the tap has to set on the blocks because nothing else does, `batches` the parameters of class ForwardBatch, `exits`
    the lines of the stage exits behind the loop, `norm` the attribute of the final norm where a hook can stand before
    it.
    """

    file: PurePosixPath
    class_name: str
    function: str
    kind: Kind
    owner: str
    loop_line: int
    first_line: int = 0
    index: str = ""
    hidden: str = ""
    residual: str | None = None
    accumulator: str = ""
    layers: str = LAYER_LIST
    mark: str = ""
    batches: tuple[str, ...] = ()
    exits: tuple[int, ...] = ()
    places: tuple[CapturePlace, ...] = ()
    norm: str | None = None
    objections: tuple[Objection, ...] = ()

    @property
    def scope(self) -> str:
        """The qualified name of the function."""
        return f"{self.class_name}.{self.function}"

    def to_json(self) -> dict[str, object]:
        """Return it as data."""
        return {
            "file": str(self.file),
            "scope": self.scope,
            "kind": self.kind,
            "loop_line": self.loop_line,
            "index": self.index,
            "hidden": self.hidden,
            "residual": self.residual,
            "accumulator": self.accumulator,
            "layers": self.layers,
            "exits": list(self.exits),
            "norm": self.norm,
            "places": [place.to_json() for place in self.places],
            "objections": [objection.to_json() for objection in self.objections],
        }


@dataclass(frozen=True)
class ClassFate:
    """One class that SGLang offers to load.

    `native`: it has SGLang's own setter. `arm`: it has none, but what it wraps captures, and the tap chooses the
    layers there. `loop`: its backbone captures nothing and a line in the loop can (`--model <file>`). `refused`:
    neither; `reason` says why, and `objection` where, if a line is the reason. `backbone_file` is where the forward
    stands that runs the blocks.
    """

    name: str
    file: str
    way: Literal["native", "arm", "loop", "refused"]
    backbone: str
    reason: str
    objection: Objection | None = None
    backbone_file: PurePosixPath | None = None

    def to_json(self) -> dict[str, str]:
        """Return it as data, without where it stands."""
        names = ("name", "file", "way", "backbone", "reason")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class ModelReadings:
    """What the model files of a tree hold: every reading, in order, and what becomes of every class by name."""

    readings: tuple[Reading, ...]
    fates: tuple[ClassFate, ...]

    @property
    def objections(self) -> Mapping[tuple[PurePosixPath, str], Objection]:
        """The first objection to each class that is not captured, by file and class.

        What a file's own head does to the states is an objection to every backbone of the file.
        """
        heads = {each.file: each.objections[0] for each in self.readings if each.kind == "head"}
        found: dict[tuple[PurePosixPath, str], Objection] = {}
        for reading in self.readings:
            for objection in (*reading.objections, *([heads[reading.file]] if reading.file in heads else ())):
                found.setdefault((reading.file, reading.class_name), objection)
        return found

    def usable(self, kind: Kind) -> tuple[Reading, ...]:
        """Return the readings of a kind that nothing is objected to."""
        objections = self.objections
        ours = (reading for reading in self.readings if reading.kind == kind)
        return tuple(reading for reading in ours if (reading.file, reading.class_name) not in objections)


NOTHING_READ = ModelReadings((), ())
