"""What the tracer found, as data; imports nothing that parses, so that a reader of reports stays light."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from auxtap.core.draft_ids import OffsetRule
from auxtap.tracer.report.entries import FileTrace, JsonEntry
from auxtap.tracer.report.readings import Reading, SourceLine

# Raised when a key changes its meaning or goes; new keys do not raise it. See docs/trace-schema.md.
SCHEMA = 1


# A line that supports a statement.
Evidence = SourceLine


@dataclass(frozen=True)
class LayerRule:
    """How one setter turns what it is given into capture indices.

    `offsets` says what is added to each given id, by condition; `offset` is that number when it is the same always.
    `default` is the source of the list used without ids. An entry of the list plus `shift` is a capture index:
    `side` says whether the model takes the input or the output of the block of that number. `resolved` is the
    default list as capture indices for a known number of blocks, `draft_ids` the list that a draft model's
    configuration gives for the same, None where no list does; `reaches_end` that the state after the last block can
    be chosen too.
    """

    scope: str
    offset: int | None
    default: str | None
    resolved: tuple[int, ...] | None
    evidence: tuple[Evidence, ...]
    offsets: tuple[OffsetRule, ...] = ()
    side: str | None = None
    shift: int | None = None
    reaches_end: bool = False
    draft_ids: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, object]:
        """Return it as data."""
        return {
            "scope": self.scope,
            "offset": self.offset,
            "offsets": [item.to_json() for item in self.offsets],
            "default": self.default,
            "side": self.side,
            "shift": self.shift,
            "reaches_end": self.reaches_end,
            "resolved": None if self.resolved is None else list(self.resolved),
            "conventions": self.conventions(),
            "evidence": [item.to_json() for item in self.evidence],
        }

    def conventions(self) -> list[dict[str, object]]:
        """Return the default layers in all conventions."""
        return [
            {"capture_index": index, "draft_config_id": given, "transformers": f"hidden_states[{index}]"}
            for index, given in self.ids_by_index()
        ]

    def ids_by_index(self) -> tuple[tuple[int, int | None], ...]:
        """Return each default layer as a capture index, and the id that stands for it in `draft_ids`."""
        if not self.resolved or not self.draft_ids:
            return tuple((index, None) for index in self.resolved or ())
        added = min(self.resolved) - min(self.draft_ids)
        return tuple((index, index - added) for index in self.resolved)


@dataclass(frozen=True)
class FlowStep:
    """One step of a state's way: what happens there, and the line."""

    kind: str
    text: str
    evidence: Evidence

    def to_json(self) -> dict[str, object]:
        """Return it as data."""
        return {"kind": self.kind, "text": self.text, "evidence": self.evidence.to_json()}


@dataclass(frozen=True)
class Fact:
    """Something a person needs to know, with the lines that show it."""

    kind: str
    text: str
    evidence: tuple[Evidence, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return it as data."""
        return {"kind": self.kind, "text": self.text, "evidence": [item.to_json() for item in self.evidence]}


@dataclass(frozen=True)
class Hazard:
    """A configuration in which captured values are wrong or missing, seen in the source.

    `settings` are the server's options that bring it about, `default_on` says whether they are on (or come on by
    themselves) without being asked for, `hardware` on which machines, None for all; `avoid` is the flag or guard.
    """

    name: str
    text: str
    trigger: str
    avoid: str
    evidence: tuple[Evidence, ...]
    settings: tuple[str, ...] = ()
    default_on: bool = False
    hardware: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return it as data."""
        return {
            "name": self.name,
            "text": self.text,
            "trigger": self.trigger,
            "settings": list(self.settings),
            "default_on": self.default_on,
            "hardware": self.hardware,
            "avoid": self.avoid,
            "evidence": [item.to_json() for item in self.evidence],
        }


@dataclass(frozen=True)
class FlowLink:
    """One class of a chain and how the one before it reaches it (`self.language_model`, `inherits`, ...).

    `member` is the attribute that holds it, empty for the entry class and for bases.
    """

    name: str
    file: PurePosixPath
    line: int
    how: str
    member: str = ""

    def to_json(self) -> JsonEntry:
        """Return it as data."""
        return {"name": self.name, "file": str(self.file), "line": self.line, "how": self.how}


@dataclass(frozen=True)
class Flow:
    """The chain from one model class to its backbone and from there to the logits processor.

    `steps` follow a state; `breaks` says where it cannot get through. `side` and `shift` are those of `LayerRule`,
    `reaches_end` says that the state after the last block can be captured too.
    """

    model: str
    links: tuple[FlowLink, ...]
    setter: str | None
    breaks: tuple[str, ...] = ()
    steps: tuple[FlowStep, ...] = ()
    side: str | None = None
    shift: int | None = None
    reaches_end: bool = False

    def to_json(self) -> dict[str, object]:
        """Return it as data."""
        return {
            "model": self.model,
            "links": [link.to_json() for link in self.links],
            "setter": self.setter,
            "steps": [step.to_json() for step in self.steps],
            "side": self.side,
            "shift": self.shift,
            "reaches_end": self.reaches_end,
            "breaks": list(self.breaks),
        }


@dataclass(frozen=True)
class SkippedFile:
    """A file that could not be read or parsed, and why."""

    file: PurePosixPath
    reason: str

    def to_json(self) -> JsonEntry:
        """Return it as data."""
        return {"file": str(self.file), "reason": self.reason}


@dataclass(frozen=True)
class TraceReport:
    """What the tracer found in one tree; `changed` are its files that are not as in `commit` (see `SourceTree`)."""

    release: str
    origin: str
    commit: str
    files: tuple[FileTrace, ...]
    flows: tuple[Flow, ...] = ()
    layer_rules: tuple[LayerRule, ...] = ()
    facts: tuple[Fact, ...] = ()
    hazards: tuple[Hazard, ...] = ()
    num_layers: int | None = None
    delivery: tuple[FlowStep, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    readings: tuple[Reading, ...] = ()
    changed: tuple[PurePosixPath, ...] = ()

    @property
    def n_unknown(self) -> int:
        """Count the sites and branches whose role was not recognised."""
        return sum(trace.n_unknown for trace in self.files)

    def to_json(self) -> dict[str, object]:
        """Return the whole report as data; each entry of `files` has the form of the golden files."""
        code = {str(trace.file): trace.code_by_line() for trace in self.files}
        return {
            "schema": SCHEMA,
            "release": self.release,
            "origin": self.origin,
            "commit": self.commit,
            "changed": [str(path) for path in self.changed],
            "num_layers": self.num_layers,
            "n_sites": sum(len(trace.capture_sites) for trace in self.files),
            "n_branches": sum(len(trace.stage_branches) for trace in self.files),
            "n_unknown": self.n_unknown,
            "files": [trace.to_json(self.release) for trace in self.files],
            "flows": [flow.to_json() for flow in self.flows],
            "layer_rules": [rule.to_json() for rule in self.layer_rules],
            "facts": [fact.to_json() for fact in self.facts],
            "delivery": [step.to_json() for step in self.delivery],
            "hazards": [hazard.to_json() for hazard in self.hazards],
            "skipped": [item.to_json() for item in self.skipped],
            "readings": [reading.to_json() for reading in self.readings],
            "code": code,
        }
