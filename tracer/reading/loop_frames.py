"""Where a loop that captures stands in its function: the collector before it, and what runs around the two."""

from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.blocks.handing import PLAIN_LIST, Collector
from auxtap.tracer.reading.blocks import BlockAnswers
from auxtap.tracer.reading.forwards import Forward
from auxtap.tracer.reading.loops import DecoderLoop
from auxtap.tracer.reading.mentions import bound_names, touches
from auxtap.tracer.reading.rounds import ObjectedError
from auxtap.tracer.report.readings import Objection
from auxtap.tracer.source.bodies import statements_of
from auxtap.tracer.source.fragments import last_name
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.walk import find


@dataclass(frozen=True, eq=False)
class Frame:
    """Where the loop and the collector stand in the function: what runs between them, and behind the loop."""

    accumulator: str
    made: cst.CSTNode
    collector: Collector
    between: tuple[cst.CSTNode, ...]
    behind: tuple[cst.CSTNode, ...]


def find_frame(forward: Forward, loop: DecoderLoop, answers: BlockAnswers) -> Frame:
    """Return where the loop and the collector that it fills stand.

    Raises:
        ObjectedError: the loop runs on one way only, or it fills no collector of its own.
    """
    body = forward.body
    holder = next(item for item in body if item is loop.node or _holds(item, loop.node))
    before, behind = forward.around(holder)
    between: tuple[cst.CSTNode, ...] = ()
    if holder is not loop.node:
        inner = _other_of_two_batches(forward, loop, holder)
        place = inner.index(loop.node)
        between, behind = inner[:place], (*inner[place + 1 :], *behind)
    made = {name: (item, value) for item in before for name, value in _made(item)}
    used = [name for name in made if touches(loop.node, {name})]
    if len(used) != 1:
        found = ", ".join(used) or "none"
        raise ObjectedError(loop.node, f"it fills {len(used)} collectors that it makes before its loop ({found})")
    name, (statement, value) = used[0], made[used[0]]
    return Frame(
        accumulator=name,
        made=statement,
        collector=_collector(forward, answers, statement, value),
        between=(*before[before.index(statement) + 1 :], *between),
        behind=behind,
    )


def _other_of_two_batches(forward: Forward, loop: DecoderLoop, holder: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    """Return the statements around the loop where two overlapping batches have a way of their own."""
    if isinstance(holder, cst.If) and forward.two_batches(holder.test):
        inner = () if not isinstance(holder.orelse, cst.Else) else statements_of(holder.orelse.body)
        if loop.node in inner:
            return tuple(inner)
    raise ObjectedError(loop.node, "the loop runs only on one way through the function")


def _collector(forward: Forward, answers: BlockAnswers, statement: cst.CSTNode, value: cst.BaseExpression) -> Collector:
    if isinstance(value, cst.List):
        return PLAIN_LIST
    found = answers.collector(last_name(value) or "", forward.cite(statement))
    if isinstance(found, Objection):
        raise ObjectedError(statement, found.reason)
    return found


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
    value = only_value(statement, names[0]) if len(names) == 1 else None
    made = isinstance(value, cst.List) and not value.elements
    made = made or (isinstance(value, cst.Call) and kind_of(last_name(value) or "") is Kind.COLLECTOR)
    return [(names[0], value)] if made and value is not None else []


def only_value(statement: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """Return what a statement that does nothing else binds a name to."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    assign = statement.body[0]
    if isinstance(assign, cst.AnnAssign) and m.matches(assign.target, m.Name(name)):
        return assign.value
    single = m.Assign(targets=[m.AssignTarget(m.Name(name))])
    return assign.value if isinstance(assign, cst.Assign) and m.matches(assign, single) else None
