"""Read what becomes of a collector that is handed into a block: the place where it takes the state, or why not."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath

from auxtap.tracer.blocks.calls import Memory
from auxtap.tracer.blocks.class_forms import class_objections, function_objections
from auxtap.tracer.blocks.frames import ObjectedError
from auxtap.tracer.blocks.handing import HandIn, HandInReading
from auxtap.tracer.blocks.members import Members, NotKnownError
from auxtap.tracer.blocks.naming import FoundFunction, Names
from auxtap.tracer.blocks.statements import Follower
from auxtap.tracer.blocks.values import BATCH, OTHER, RESIDUAL, STATE, Kind, Value, Way
from auxtap.tracer.flow.classes import ClassIndex, FoundClass
from auxtap.tracer.report.readings import Objection, SourceLine

_FORWARD = "forward"
_BATCH_NAME = "forward_batch"


@dataclass(frozen=True, eq=False)
class BlockReader:
    """Reads blocks of one tree; a block that several backbones share is read once for each way of handing in."""

    index: ClassIndex
    names: Names = field(init=False)
    members: Members = field(init=False)
    _memory: Memory = field(default_factory=dict)
    _read: dict[object, HandInReading] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", Names(self.index))
        object.__setattr__(self, "members", Members(self.names))

    def read(self, hand_in: HandIn) -> HandInReading:
        """Return the way of the collector inside every class that the layers may have."""
        owner = self.index.classes_of(hand_in.file)[hand_in.class_name]
        given = SourceLine(
            hand_in.file, hand_in.line, f"{hand_in.class_name}.{_FORWARD}", self._code(hand_in.file, hand_in.line)
        )
        try:
            blocks = self.members.layers(owner)
        except NotKnownError:
            return HandInReading((), (Objection(given, "which class its layers have cannot be told"),))
        readings = [self._read_block(block, hand_in, given) for block in blocks]
        inside = tuple(dict.fromkeys(line for reading in readings for line in reading.inside))
        objections = tuple(dict.fromkeys(item for reading in readings for item in reading.objections))
        return HandInReading(inside, objections)

    def _code(self, path: PurePosixPath, line: int) -> str:
        return self.index.source(path).code_at(line)

    def _read_block(self, block: FoundClass, hand_in: HandIn, given: SourceLine) -> HandInReading:
        key = (
            block,
            hand_in.keyword,
            hand_in.method,
            hand_in.collector,
            hand_in.hidden,
            hand_in.residual,
            hand_in.others,
        )
        if key not in self._read:
            try:
                self._read[key] = self._follow(block, hand_in, given)
            except ObjectedError as objected:
                self._read[key] = HandInReading((), (objected.objection,))
        return self._read[key]

    def _follow(self, block: FoundClass, hand_in: HandIn, given: SourceLine) -> HandInReading:
        function = self.names.method(block, _FORWARD)
        if function is None:
            return HandInReading((), (Objection(given, f"{block.name} has no forward of its own"),))
        objections = (*class_objections(self.names, block), *function_objections(self.names, function))
        if objections:
            return HandInReading((), objections)
        follower = Follower(self.members, self._memory, copies=hand_in.collector.copies, takes=hand_in.collector.takes)
        start = self._begin(function, block, hand_in, follower)
        ended = follower.run(function, [start])
        for way in ended:
            if not way.is_done:
                return HandInReading((), (follower.missing(function),))
        inside = tuple(dict.fromkeys(line for way in ended for line in way.taken))
        return HandInReading(inside, ())

    def _begin(self, function: FoundFunction, block: FoundClass, hand_in: HandIn, follower: Follower) -> Way:
        """Return the way at the head of the block's forward, what the backbone hands over bound to its parameters."""
        collector = Value(Kind.COLLECTOR)
        if hand_in.method is not None:
            collector = Value(Kind.TAKES, label=hand_in.method)
        values = {hand_in.keyword: collector, hand_in.hidden: STATE}
        if hand_in.residual is not None:
            values[hand_in.residual] = RESIDUAL
        # Where the block keeps the residual itself, it does so in the batch (0.5.21 on).
        batch = BATCH if hand_in.residual is None else OTHER
        for name in hand_in.others:
            values.setdefault(name, batch if name == _BATCH_NAME else OTHER)
        names = follower.bind_head(function, Value(Kind.OBJECT, found=block), values)
        return Way({name: batch if name == _BATCH_NAME else value for name, value in names.items()})
