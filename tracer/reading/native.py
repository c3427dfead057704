"""Read a function that captures by itself: what it takes in which round, and what becomes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.blocks.handing import HandIn
from auxtap.tracer.reading.behind import Behind
from auxtap.tracer.reading.blocks import BlockAnswers
from auxtap.tracer.reading.forwards import Forward
from auxtap.tracer.reading.functions import STAGE, check_bounds, check_final, check_function, names_of_the_end
from auxtap.tracer.reading.loop_frames import find_frame
from auxtap.tracer.reading.loops import DecoderLoop, LayerTest, names_layers, runnings_of
from auxtap.tracer.reading.mentions import attribute_of, find_aliases
from auxtap.tracer.reading.norms import find_final_norm
from auxtap.tracer.reading.rounds import Given, Names, ObjectedError, Round, Taken, Value, Way
from auxtap.tracer.reading.surroundings import check_surroundings
from auxtap.tracer.report.readings import LAYER_LIST, CapturePlace, Form, Objection, Reading
from auxtap.tracer.source.bodies import statements_of
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.walk import find

_FORMS: dict[str, Form] = {
    "sum": "sum",
    "gather": "gather",
    "copy": "state",
    "tensor": "state",
    "collector": "in_block",
}
_NOT_NEXT = "it tests the number of the next block, and what enters that one, or a stage's first, may be something else"
_CHANGED = "what is taken is changed before it enters the block"
_SUMS = frozenset({"snapshot"})


def read_native(forward: Forward, answers: BlockAnswers) -> Reading | None:
    """Return what a function captures; None where no layer test stands in a loop of it."""
    asking = [loop for loop in find(forward.function.body, cst.For) if names_layers(loop.body)]
    if not asking:
        return None
    loops = [loop for loop in forward.loops if loop.node in asking]
    loop = loops[0] if loops else DecoderLoop(asking[0], forward.owner)
    reading = replace(forward.begin("native", loop.node), layers=_list_of(loop))
    try:
        if len(asking) > 1:
            raise ObjectedError(asking[1], f"{len(asking)} loops capture")
        if not loops:
            raise ObjectedError(asking[0], "its loop calls no block of self.layers")
        if forward.name != "forward":
            raise ObjectedError(forward.function, "it captures in a helper, which is not followed from its forward")
        return _Native(forward, loop, answers).read(reading)
    except ObjectedError as objected:
        return replace(reading, objections=(forward.object(objected.node, objected.reason),))


def _list_of(loop: DecoderLoop) -> str:
    named = (item.attr.value for item in find(loop.node, cst.Attribute) if kind_of(item.attr.value) is Kind.LAYERS)
    return next(named, LAYER_LIST)


class _Native:
    """Reads one loop that captures."""

    def __init__(self, forward: Forward, loop: DecoderLoop, answers: BlockAnswers) -> None:
        self._forward, self._loop, self._answers = forward, loop, answers
        self._frame = find_frame(forward, loop, answers)
        runnings = runnings_of(loop)
        if not runnings:
            raise ObjectedError(loop.node, "what the block returns is not assigned by its call")
        self._running = runnings[0]
        tensors = {running.tensors for running in runnings}
        if len(tensors) != 1 or not self._running.tensors or self._running.tensors[0] != self._running.bound[0]:
            raise ObjectedError(
                self._running.node, f"{self._running.bound[0]} is not handed to the block that returns it"
            )
        marked, self._mark = self._read_mark()
        self._names = Names(
            accumulator=self._frame.accumulator,
            tensors=self._running.tensors,
            aliases=find_aliases(forward.function, self._running.tensors, forward.owner),
            copying=self._frame.collector.takes if self._frame.collector.copies else frozenset(),
            sums=self._sums(),
            marked=marked,
        )

    def read(self, reading: Reading) -> Reading:
        """Return the reading with the places; raises ObjectedError where something is not understood."""
        check_surroundings(self._forward)
        check_function(self._forward, self._loop, self._frame, self._names)
        check_bounds(self._forward, self._loop)
        first = self._take_first()
        taken = self._take_all()
        behind = Behind(
            self._forward.owner,
            self._frame.accumulator,
            self._frame.collector.finish,
            names_of_the_end(self._forward),
        )
        behind.read(self._frame.behind)
        check_final(self._forward, self._frame.behind, self._running.tensors[0])
        nexts = [item for item, _ in taken if item.when == "next"]
        if bool(nexts) != (first is not None):
            raise ObjectedError(nexts[0].node if nexts else self._loop.node, _NOT_NEXT)
        objections = [*self._answers.of_class(self._forward.source.path, self._forward.class_name)]
        places = [self._place(item, given, objections) for item, given in taken]
        forms = {(place.at.line, place.form): place for place in places}
        line_of = self._forward.fragment.line_of
        return replace(
            reading,
            index=self._loop.index or "",
            mark=self._mark,
            hidden=self._running.tensors[0],
            residual=self._residual,
            accumulator=self._frame.accumulator,
            exits=tuple(line_of(item) for item in behind.exits),
            places=tuple(forms.values()),
            norm=find_final_norm(self._frame.behind, self._forward.owner, self._forward.made),
            objections=tuple(objections),
        )

    @property
    def _residual(self) -> str | None:
        bound, tensors = self._running.bound, self._running.tensors
        return bound[1] if len(bound) > 1 and bound[1] in tensors else None

    def _sums(self) -> frozenset[str]:
        """Return the functions that the loop calls and that do nothing but add two tensors."""
        called = {call.func.value for call in find(self._loop.node, cst.Call) if isinstance(call.func, cst.Name)}
        return frozenset(name for name in called & _SUMS if self._answers.is_sum(self._forward.source.path, name))

    def _read_mark(self) -> tuple[bool, str]:
        """Tell whether marks on blocks answer, and which one the tap has to set because nothing else does.

        Beside a list, marks that nothing sets answer nothing.
        """
        marks = [item for item in find(self._loop.node, cst.SimpleString) if kind_of(str(item.raw_value)) is Kind.MARK]
        if not marks:
            return True, ""
        mark = str(marks[0].raw_value)
        read = self._answers.mark(self._forward.source.path, self._forward.class_name, mark)
        if read.objection is not None:
            raise ObjectedError(marks[0], read.objection.reason)
        listed = any(kind_of(item.attr.value) is Kind.LAYERS for item in find(self._loop.node, cst.Attribute))
        if listed and read.way == "setter":
            raise ObjectedError(marks[0], "it captures both by a list and by marks on its blocks")
        return not listed, mark if read.way == "nobody" and not listed else ""

    def _take_first(self) -> Taken | None:
        """Return what is taken before the loop, for the stage's first block, where there is such a place."""
        following = Round(self._names, self._loop, wanted=True)
        start = way = following.start()
        for statement in self._frame.between:
            if self._is_first(statement):
                assert isinstance(statement, cst.If)
                ways = following.follow(way, statements_of(statement.body))
                if len(ways) != 1 or len(ways[0].taken) != 1:
                    raise ObjectedError(statement, _NOT_NEXT)
                way = ways[0]
            else:
                way = following.pass_by(way, statement)
        if not way.taken:
            return None
        stage = attribute_of(
            getattr(self._loop.node.iter, "args", (cst.Arg(cst.Name("x")),))[0].value, self._forward.owner
        )
        same = way.taken[0].value.of == self._stream(way.values)
        if len(way.taken) > 1 or not same or stage != STAGE[0] or start is way:
            raise ObjectedError(way.taken[-1].node, _NOT_NEXT)
        return way.taken[0]

    def _is_first(self, statement: cst.CSTNode) -> bool:
        if not isinstance(statement, cst.If) or statement.orelse is not None:
            return False
        first = m.Attribute(value=m.Name(self._forward.owner), attr=m.Name(STAGE[0]))
        asked = m.Comparison(left=first, comparisons=[m.ComparisonTarget(operator=m.In())])
        if not m.matches(statement.test, asked) or not isinstance(statement.test, cst.Comparison):
            return False
        listed = attribute_of(statement.test.comparisons[0].comparator, self._forward.owner)
        return listed is not None and kind_of(listed) is Kind.LAYERS

    def _stream(self, values: Mapping[str, Value]) -> frozenset[int]:
        """Return the numbers of the tensors that make up the stream: the state, and the residual beside it."""
        named = (self._running.tensors[0], *(() if self._residual is None else (self._residual,)))
        return frozenset(number for name in named for number in values[name].of)

    def _take_all(self) -> list[tuple[Taken, Given]]:
        """Return what the ways through a round take where the layer is asked for, and what the block is given there."""
        found: dict[tuple[cst.CSTNode, frozenset[str]], tuple[Taken, Given]] = {}
        tests: dict[LayerTest, cst.CSTNode] = {}
        for wanted in (True, False):
            following = Round(self._names, self._loop, wanted=wanted)
            start = following.start()
            for way in following.follow(start, self._loop.round):
                self._check_way(start, way, wanted)
                if way.given is not None:
                    key = frozenset(way.given.others)
                    found |= {(item.node, key): (item, way.given) for item in way.taken}
            tests |= following.tests
        self._check_tests(tests, [item for item, _ in found.values()])
        return list(found.values())

    def _check_way(self, start: Way, way: Way, wanted: bool) -> None:
        loop = self._loop.node
        if way.given is None:
            raise ObjectedError(loop, "a block may be left out of a round, or is not known to be that of the round")
        if len(way.taken) != wanted:
            node = way.taken[-1].node if way.taken else loop
            conditions = " and ".join(map(str, way.facts))
            under = f" where {conditions}" if conditions else ""
            times = (
                "nothing"
                if not way.taken
                else f"{len(way.taken)} states"
                if wanted
                else "a state that was not asked for"
            )
            raise ObjectedError(node, f"a round takes {times}{under}")
        for taken in way.taken:
            if taken.when == "before" and taken.value.of != self._stream(way.given.values):
                raise ObjectedError(taken.node, _CHANGED)
            unchanged = self._stream(way.given.values) == self._stream(start.values)
            if taken.when == "next" and (taken.value.of != self._stream(way.values) or not unchanged):
                raise ObjectedError(taken.node, _NOT_NEXT)

    def _check_tests(self, tests: Mapping[LayerTest, cst.CSTNode], taken: Sequence[Taken]) -> None:
        shifts = {test.shift for test in tests}
        listed = {test.attribute for test in tests if not test.is_mark}
        node = next(iter(tests.values()), self._loop.node)
        if others := listed - {LAYER_LIST}:
            raise ObjectedError(node, f"it captures by self.{sorted(others)[0]}, which the tap does not fill")
        for item in taken:
            if shifts != {0} and item.when != "next":
                raise ObjectedError(node, _NOT_NEXT)
            if item.when == "next" and shifts != {1}:
                raise ObjectedError(node, "it captures behind the block: an entry of its list is not a capture index")

    def _place(self, taken: Taken, given: Given, objections: list[Objection]) -> CapturePlace:
        place = CapturePlace(
            at=self._forward.cite(taken.node),
            form=_FORMS[taken.value.held],
            when=taken.when,
            shift=0,
            conditions=taken.conditions,
        )
        if not taken.keyword:
            return place
        read = self._answers.hand_in(
            HandIn(
                file=self._forward.source.path,
                class_name=self._forward.class_name,
                line=place.at.line,
                keyword=taken.keyword,
                method=taken.value.method,
                collector=self._frame.collector,
                hidden=given.parameters[self._running.tensors[0]],
                residual=None if self._residual is None else given.parameters[self._residual],
                others=given.others,
            )
        )
        objections.extend(read.objections)
        return replace(place, inside=read.inside)
