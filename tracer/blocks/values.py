"""What the names of a block's code may hold while it is followed, and how one way through it stands."""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Literal, Self

from auxtap.tracer.flow.classes import FoundClass
from auxtap.tracer.report.readings import SourceLine


class Kind(Enum):
    """The kinds of things that are told apart; everything that holds no part of the stream is `OTHER`."""

    OTHER = auto()
    NONE = auto()
    TRUE = auto()
    FALSE = auto()
    # The two tensors that enter a block, and what they add up to: the state that enters it.
    STATE = auto()
    RESIDUAL = auto()
    SUM = auto()
    # Made from them by a norm or a layer: harmless where it goes, wrong where it is captured.
    DERIVED = auto()
    CHANGED = auto()
    # Fresh storage without a value, filled by the collective that it is given to.
    STORAGE = auto()
    COLLECTOR = auto()
    TAKES = auto()
    BATCH = auto()
    STREAM = auto()
    PENDING = auto()
    TUPLE = auto()
    KEYWORDS = auto()
    OBJECT = auto()
    SUPER = auto()
    # `x.y` of anything, and a name that no local variable has.
    MEMBER = auto()
    NAME = auto()


# A sum over the ranks that the block before has left undone, and the same where each rank gets a part of the rows.
Owed = Literal["reduce", "scatter"] | None
TENSORS = frozenset({Kind.STATE, Kind.RESIDUAL, Kind.SUM, Kind.CHANGED})
_TRACKED = TENSORS | {Kind.COLLECTOR, Kind.TAKES, Kind.STREAM}


@dataclass(frozen=True)
class Value:
    """One thing; `own` says of a tensor that no later code can write over its storage.

    `label` is the name of a member, the reason of a change or the text of a string; `parts` are the elements of a
    tuple, what keywords hold, or what a member is of; `keys` name what keywords hold; `found` is the class of an
    object; `is_there` says that it is known not to be None.
    """

    kind: Kind
    own: bool = False
    label: str = ""
    parts: tuple["Value", ...] = ()
    keys: tuple[str, ...] = ()
    found: FoundClass | None = None
    is_there: bool = False

    @property
    def is_tracked(self) -> bool:
        """Whether it is or holds a part of the stream, or the collector."""
        return self.kind in _TRACKED or any(part.is_tracked for part in self.parts)

    @property
    def reaches_stream(self) -> bool:
        """Whether a call that is given it could change the stream."""
        return self.is_tracked or self.kind in (Kind.BATCH, Kind.PENDING) or any(p.reaches_stream for p in self.parts)

    def item(self, key: str) -> "Value | None":
        """Return what keywords hold under a name."""
        return dict(zip(self.keys, self.parts, strict=True)).get(key)

    def with_item(self, key: str, value: "Value") -> "Value":
        """Return keywords with one more."""
        items = {**dict(zip(self.keys, self.parts, strict=True)), key: value}
        return replace(self, keys=tuple(items), parts=tuple(items.values()))


OTHER = Value(Kind.OTHER)
NONE = Value(Kind.NONE)
TRUE = Value(Kind.TRUE)
FALSE = Value(Kind.FALSE)
STATE = Value(Kind.STATE)
RESIDUAL = Value(Kind.RESIDUAL)
SUM = Value(Kind.SUM)
DERIVED = Value(Kind.DERIVED)
BATCH = Value(Kind.BATCH)
STREAM = Value(Kind.STREAM)
PENDING = Value(Kind.PENDING)


def decided(answer: bool) -> Value:
    """Return the value of a test whose answer is known."""
    return TRUE if answer else FALSE


def several(*parts: Value) -> Value:
    """Return a tuple."""
    return Value(Kind.TUPLE, parts=parts)


@dataclass(frozen=True)
class Way:
    """One way through the code: what its names hold, and what was decided on it.

    `residual` is what the stream holds, `has_residual` and `has_pending` whether there is a residual, and an output
    that waits to be added to it (None: not known); `spent` says that a kernel has written over both tensors, `owed`
    what the ranks have yet to do to the state before it is whole. `result` is what a function has returned.

    Ways on which the batch has no rows are left out: nothing on them is data.
    """

    names: dict[str, Value]
    residual: Value = RESIDUAL
    has_residual: bool | None = None
    has_pending: bool | None = None
    spent: bool = False
    owed: Owed = None
    taken: tuple[SourceLine, ...] = ()
    result: Value | None = None

    @property
    def is_lone(self) -> bool:
        """Whether the state is the whole stream: nothing is to be added to it."""
        return self.has_residual is False or self.has_pending is False

    @property
    def is_done(self) -> bool:
        """Whether the collector has what it is there for."""
        return bool(self.taken)

    def bind(self, name: str, value: Value) -> Self:
        """Return this way with a name bound."""
        return replace(self, names={**self.names, name: value})

    def identity(self) -> object:
        """Return what makes two ways the same."""
        stands = (self.residual, self.has_residual, self.has_pending, self.spent, self.owed, self.taken, self.result)
        return tuple(sorted(self.names.items(), key=lambda item: item[0])), stands


def distinct(ways: list[Way]) -> list[Way]:
    """Return the ways that differ, in order."""
    return list({way.identity(): way for way in ways}.values())
