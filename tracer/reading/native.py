"""Read a function that captures by itself: what it takes in which round, and what becomes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.blocks.handing import PLAIN_LIST, Collector, HandIn
from auxtap.tracer.reading.behind import Behind, is_end, returns_in
from auxtap.tracer.reading.blocks import BlockAnswers
from auxtap.tracer.reading.forwards import Forward
from auxtap.tracer.reading.loops import BLOCKS, DecoderLoop, LayerTest, names_layers, runnings_of
from auxtap.tracer.reading.mentions import UNSEEN, attribute_of, bound_names, find_aliases, touches
from auxtap.tracer.reading.norms import find_final_norm
from auxtap.tracer.reading.rounds import Given, Names, ObjectedError, Round, Taken, Value, Way
from auxtap.tracer.reading.surroundings import check_surroundings
from auxtap.tracer.report.readings import LAYER_LIST, CapturePlace, Form, Objection, Reading
from auxtap.tracer.source.bodies import statements_of
from auxtap.tracer.source.fragments import last_name, source_of
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.walk import find, parents_of

_FORMS: dict[str, Form] = {
    "sum": "sum",
    "gather": "gather",
    "copy": "state",
    "tensor": "state",
    "collector": "in_block",
}
_NOT_NEXT = "it tests the number of the next block, and what enters that one, or a stage's first, may be something else"
_CHANGED = "what is taken is changed before it enters the block"
_STAGE = ("start_layer", "end_layer")
_SUMS = frozenset({"snapshot"})


@dataclass(frozen=True, eq=False)
class _Frame:
    """Where the loop and the collector stand in the function: what runs between them, and behind the loop."""

    accumulator: str
    made: cst.CSTNode
    collector: Collector
    between: tuple[cst.CSTNode, ...]
    behind: tuple[cst.CSTNode, ...]


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
        self._frame = self._find_frame()
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
        self._check_function()
        self._check_bounds()
        first = self._take_first()
        taken = self._take_all()
        behind = Behind(
            self._forward.owner,
            self._frame.accumulator,
            self._frame.collector.finish,
            self._names_of_the_end(),
        )
        behind.read(self._frame.behind)
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

    def _find_frame(self) -> _Frame:
        body = self._forward.body
        holder = next(item for item in body if item is self._loop.node or _holds(item, self._loop.node))
        before, behind = self._forward.around(holder)
        between: tuple[cst.CSTNode, ...] = ()
        if holder is not self._loop.node:
            inner = self._other_of_two_batches(holder)
            place = inner.index(self._loop.node)
            between, behind = inner[:place], (*inner[place + 1 :], *behind)
        made = {name: (item, value) for item in before for name, value in _made(item)}
        used = [name for name in made if touches(self._loop.node, {name})]
        if len(used) != 1:
            found = ", ".join(used) or "none"
            raise ObjectedError(
                self._loop.node, f"it fills {len(used)} collectors that it makes before its loop ({found})"
            )
        name, (statement, value) = used[0], made[used[0]]
        return _Frame(
            accumulator=name,
            made=statement,
            collector=self._collector(statement, value),
            between=(*before[before.index(statement) + 1 :], *between),
            behind=behind,
        )

    def _other_of_two_batches(self, holder: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
        """Return the statements around the loop where two overlapping batches have a way of their own."""
        if isinstance(holder, cst.If) and self._forward.two_batches(holder.test):
            inner = () if not isinstance(holder.orelse, cst.Else) else statements_of(holder.orelse.body)
            if self._loop.node in inner:
                return tuple(inner)
        raise ObjectedError(self._loop.node, "the loop runs only on one way through the function")

    def _collector(self, statement: cst.CSTNode, value: cst.BaseExpression) -> Collector:
        if isinstance(value, cst.List):
            return PLAIN_LIST
        found = self._answers.collector(last_name(value) or "", self._forward.cite(statement))
        if isinstance(found, Objection):
            raise ObjectedError(statement, found.reason)
        return found

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

    def _check_function(self) -> None:
        """Object to what the rest of the function does to the blocks, their numbers and what is to be captured."""
        function, names = self._forward.function, {*self._names.aliases, self._names.accumulator}
        for word in find(function.body, cst.Name):
            if word.value in UNSEEN:
                raise ObjectedError(word, f"it uses {word.value}, which reaches what is captured unseen")
        for inner in (*find(function.body, cst.FunctionDef), *find(function.body, cst.Lambda)):
            if touches(inner, names):
                raise ObjectedError(inner, "a function within it that touches a state is not followed")
        parents = parents_of(function)
        for node in find(function.body, cst.Attribute):
            name = attribute_of(node, self._forward.owner)
            if name is not None and not self._is_harmless(name, node, parents):
                raise ObjectedError(node, f"what it does to self.{name} is not followed")
        between = (*self._forward.body[: self._forward.body.index(self._frame.made)], *self._frame.between)
        if leaves := returns_in([*between, self._frame.made]):
            raise ObjectedError(leaves[0], "a return may come before it captures")

    def _is_harmless(self, name: str, node: cst.Attribute, parents: dict[cst.CSTNode, cst.CSTNode]) -> bool:
        """Tell whether a use of an attribute of self leaves the blocks and what chooses among them as they are."""
        listed = kind_of(name) is Kind.LAYERS
        if not listed and name not in (BLOCKS, *_STAGE):
            return True
        parent = parents[node]
        target: cst.CSTNode = node
        while isinstance(parent, cst.Subscript | cst.Attribute):
            if isinstance(parent, cst.Attribute) and target is node:
                return False
            target, parent = parent, parents[parent]
        if getattr(parent, "target", None) is target or isinstance(parent, cst.AsName):
            return False
        if listed:
            asked = isinstance(parent, cst.ComparisonTarget | cst.UnaryOperation)
            return asked or m.matches(parents[parent], m.Call(func=m.Name("len")))
        if name == BLOCKS and target is node:
            call = parents[parent] if isinstance(parent, cst.Arg) else None
            counted = call is not None and m.matches(call, m.Call(func=m.Name("len") | m.Name("enumerate")))
            return counted or self._runs_two_batches(node, parents)
        return True

    def _runs_two_batches(self, node: cst.CSTNode, parents: dict[cst.CSTNode, cst.CSTNode]) -> bool:
        child = node
        while (parent := parents.get(child)) is not None:
            if isinstance(parent, cst.If) and parent.body is child and self._forward.two_batches(parent.test):
                return True
            child = parent
        return False

    def _check_bounds(self) -> None:
        """Object to locals between which the loop counts, unless they are those of the stage but for two batches."""
        if self._loop.node.orelse is not None:
            raise ObjectedError(self._loop.node.orelse, "an else of the loop is not followed")
        if self._loop.index is None:
            counted = f"for {source_of(self._loop.node.target)} in {source_of(self._loop.node.iter)}"
            raise ObjectedError(self._loop.node, f"the loop does not count the blocks: {counted}")
        if self._loop.is_foreign():
            raise ObjectedError(self._loop.node, "the loop counts the blocks of another")
        for bound, wanted in zip(self._loop.bounds, _STAGE, strict=False):
            fits = False
            for statement in self._forward.body:
                if bound not in set(bound_names(statement)) or statement is self._loop.node:
                    continue
                if isinstance(statement, cst.If) and self._forward.two_batches(statement.test):
                    if statement.orelse is not None and bound in set(bound_names(statement.orelse)):
                        raise ObjectedError(statement, f"what {bound} is bound to is not followed")
                    continue
                value = _only_value(statement, bound)
                if value is None or attribute_of(value, self._forward.owner) != wanted:
                    raise ObjectedError(statement, f"{bound} is not the stage's own")
                fits = True
            if not fits:
                raise ObjectedError(self._loop.node, f"{bound} is not the stage's own")

    def _names_of_the_end(self) -> frozenset[str]:
        names: dict[str, bool] = {}
        for statement in find(self._forward.function.body, cst.SimpleStatementLine):
            for name in bound_names(statement):
                value = _only_value(statement, name)
                names[name] = value is not None and is_end(value, self._forward.owner) and name not in names
        return frozenset(name for name, fits in names.items() if fits)

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
        if len(way.taken) > 1 or not same or stage != _STAGE[0] or start is way:
            raise ObjectedError(way.taken[-1].node, _NOT_NEXT)
        return way.taken[0]

    def _is_first(self, statement: cst.CSTNode) -> bool:
        if not isinstance(statement, cst.If) or statement.orelse is not None:
            return False
        first = m.Attribute(value=m.Name(self._forward.owner), attr=m.Name(_STAGE[0]))
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


def _holds(node: cst.CSTNode, wanted: cst.CSTNode) -> bool:
    return any(item is wanted for item in find(node, type(wanted)))


def _made(statement: cst.CSTNode) -> list[tuple[str, cst.BaseExpression]]:
    """Return the name that a statement binds to an empty list, on every way, or to what a class of collectors makes."""
    if isinstance(statement, cst.If) and isinstance(statement.orelse, cst.Else):
        ways = [
            [made for item in statements_of(branch.body) for made in _made(item)]
            for branch in (statement, statement.orelse)
        ]
        same = all(len(way) == 1 and isinstance(way[0][1], cst.List) for way in ways) and ways[0][0][0] == ways[1][0][0]
        return (
            ways[0]
            if same and len(statements_of(statement.body)) == len(statements_of(statement.orelse.body)) == 1
            else []
        )
    names = list(bound_names(statement)) if isinstance(statement, cst.SimpleStatementLine) else []
    value = _only_value(statement, names[0]) if len(names) == 1 else None
    made = isinstance(value, cst.List) and not value.elements
    made = made or (isinstance(value, cst.Call) and kind_of(last_name(value) or "") is Kind.COLLECTOR)
    return [(names[0], value)] if made and value is not None else []


def _only_value(statement: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """Return what a statement that does nothing else binds a name to."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    assign = statement.body[0]
    if isinstance(assign, cst.AnnAssign) and m.matches(assign.target, m.Name(name)):
        return assign.value
    single = m.Assign(targets=[m.AssignTarget(m.Name(name))])
    return assign.value if isinstance(assign, cst.Assign) and m.matches(assign, single) else None
