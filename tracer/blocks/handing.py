"""What is asked of the blocks: a collector that is handed in, and what becomes of it."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from auxtap.tracer.report.readings import Objection, SourceLine


@dataclass(frozen=True)
class Collector:
    """What collects: `copies` says that it keeps a copy of what it is given by one of the methods in `takes`; those in
    `finish` hand all back, in the order in which they came."""

    copies: bool
    takes: frozenset[str]
    finish: frozenset[str]


PLAIN_LIST = Collector(copies=False, takes=frozenset({"append"}), finish=frozenset())


@dataclass(frozen=True)
class HandIn:
    """The argument `keyword=collector` (or its bound `method`) of a backbone's block call.

    `hidden` and `residual` are the block's parameters that get the state and the residual, by keyword, or by place
    counted from 0 behind self: `#1`; `residual` is None where the blocks keep it themselves. `others` are all further
    arguments, named alike: a parameter that is not named has its default.
    """

    file: PurePosixPath
    class_name: str
    line: int
    keyword: str
    method: str | None
    collector: Collector
    hidden: str
    residual: str | None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class HandInReading:
    """The lines at which the blocks' code takes the state that entered, or what is not known about it."""

    inside: tuple[SourceLine, ...]
    objections: tuple[Objection, ...]
