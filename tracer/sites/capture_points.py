"""Work out which state a capture site takes: the input or the output of a block, and under which list entry."""

from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from auxtap.core.draft_ids import LAYER_COUNT_NAMES
from auxtap.tracer.branches.stage_uses import names_within
from auxtap.tracer.sites.shapes import is_kind
from auxtap.tracer.sites.site_roles import Site
from auxtap.tracer.source.bodies import assigned_locals
from auxtap.tracer.source.fragments import Fragment, last_name, source_of
from auxtap.tracer.source.names import Kind
from auxtap.tracer.source.walk import find

CAPTURE_ROLES = ("append", "append_in_place", "collector_hand_in", "boundary_hand_in")
_HANDED_IN = ("collector_hand_in", "boundary_hand_in")


@dataclass(frozen=True)
class Point:
    """The state that a site within the layer loop takes.

    `side` is `input` or `output` of the block that runs in this round; `index` the name that counts the blocks;
    `shift` what has to be added to an entry of the layer list to get the capture index, None when no test of the
    list decides; `handed` says that the block itself takes the state.
    """

    side: str
    index: str
    shift: int | None
    handed: bool


def find_point(site: Site) -> Point | None:
    """Return which state a capture site takes, None outside a loop over blocks."""
    if site.entry.role not in CAPTURE_ROLES:
        return None
    fragment = site.occurrence.fragment
    place, handed = _place_of(site)
    loop = next((item for item in fragment.ancestors_of(place) if isinstance(item, cst.For)), None)
    if loop is None:
        return None
    index, run = _loop_index(loop), _block_call(loop)
    if index is None or run is None:
        return None
    before = handed or fragment.order_of(place) < fragment.order_of(run)
    tested = _tested_offset(place, index, fragment)
    shift = None if tested is None else -tested if before else 1 - tested
    return Point("input" if before else "output", index, shift, handed)


def _place_of(site: Site) -> tuple[cst.CSTNode, bool]:
    """Return the node that stands for the capture, and whether the block itself takes the state.

    A local function that captures is handed to the block by its name.
    """
    fragment = site.occurrence.fragment
    if site.entry.role in _HANDED_IN:
        chosen = find(site.anchor, cst.IfExp) if isinstance(site.anchor, cst.Arg) else iter(())
        choice = next(chosen, None)
        return (site.anchor if choice is None else choice.body), True
    functions = [item for item in fragment.ancestors_of(site.anchor) if isinstance(item, cst.FunctionDef)]
    if len(functions) > 1:
        for name in find(functions[1].body, cst.Name, m.Name(functions[0].name.value)):
            argument = next((item for item in fragment.ancestors_of(name) if isinstance(item, cst.Arg)), None)
            if argument is not None and any(isinstance(item, cst.For) for item in fragment.ancestors_of(name)):
                return name, True
    return site.anchor, False


def condition_of(site: Site) -> str | None:
    """Return under which condition within its function a setter's site is reached; tests for None are left out."""
    parts: list[str] = []
    node: cst.CSTNode = site.occurrence.reference
    for ancestor in site.occurrence.ancestors():
        if isinstance(ancestor, cst.FunctionDef):
            break
        if isinstance(ancestor, cst.If) and not _tests_for_none(ancestor.test):
            parts.append(source_of(ancestor.test) if ancestor.body is node else "otherwise")
        node = ancestor
    return " and ".join(reversed(parts)) or None


def block_counts(site: Site) -> tuple[str, ...]:
    """Return the locals of the function that are assigned the number of blocks, as a configuration calls it."""
    function = site.occurrence.function
    if function is None:
        return ()
    assigns = find(function.body, cst.Assign, m.Assign(targets=[m.AssignTarget(target=m.Name())], value=m.Attribute()))
    counts = (item for item in assigns if last_name(item.value) in LAYER_COUNT_NAMES)
    return tuple(dict.fromkeys(last_name(item.targets[0].target) or "" for item in counts))


def _tests_for_none(test: cst.BaseExpression) -> bool:
    none = m.Comparison(comparisons=[m.ComparisonTarget(operator=m.Is() | m.IsNot(), comparator=m.Name("None"))])
    asks = m.Call(func=m.Name("hasattr"))
    return m.matches(test, none | asks)


def _loop_index(loop: cst.For) -> str | None:
    """Return the name that counts the blocks: `i` of `for i in range(..)` and of `for i, layer in enumerate(..)`."""
    target = loop.target
    if isinstance(target, cst.Tuple) and target.elements:
        target = target.elements[0].value  # type: ignore[assignment]
    return target.value if isinstance(target, cst.Name) else None


def _block_call(loop: cst.For) -> cst.CSTNode | None:
    """Return the statement of the loop that runs a block: a call whose result rebinds what it was given."""
    for assign in find(loop.body, cst.Assign):
        if not isinstance(assign.value, cst.Call):
            continue
        given = names_within(assign.value.args)
        rebound = assigned_locals([assign]) & given
        indexed = isinstance(assign.value.func, cst.Subscript)
        if rebound and (indexed or last_name(assign.value.func) not in {None, "append"}):
            return assign
    return None


def _tested_offset(place: cst.CSTNode, index: str, fragment: Fragment) -> int | None:
    """Return k of the test `index + k in layers` around the site; a mark on the layer stands for k = 0."""
    node = place
    for ancestor in fragment.ancestors_of(place):
        if isinstance(ancestor, cst.For | cst.FunctionDef):
            return None
        if isinstance(ancestor, cst.If | cst.IfExp) and ancestor.test is not node:
            found = _offset_in(ancestor.test, index)
            if found is not None:
                return found
        node = ancestor
    return None


def _offset_in(test: cst.BaseExpression, index: str) -> int | None:
    for comparison in find(test, cst.Comparison):
        if len(comparison.comparisons) == 1 and isinstance(comparison.comparisons[0].operator, cst.In):
            offset = _index_offset(comparison.left, index)
            if offset is not None:
                return offset
    for attribute in find(test, cst.Attribute):
        if is_kind(attribute, Kind.MARK):
            return 0
    marked = m.Call(func=m.Name("getattr"), args=[m.Arg(), m.Arg(m.SimpleString()), m.ZeroOrMore()])
    return 0 if any("to_capture" in source_of(call) for call in find(test, cst.Call, marked)) else None


def _index_offset(node: cst.BaseExpression, index: str) -> int | None:
    if m.matches(node, m.Name(index)) or (isinstance(node, cst.Attribute) and node.attr.value == "layer_id"):
        return 0
    if isinstance(node, cst.BinaryOperation) and m.matches(node.left, m.Name(index)):
        sign = {cst.Add: 1, cst.Subtract: -1}.get(type(node.operator))
        if sign is not None and isinstance(node.right, cst.Integer):
            return sign * int(node.right.value, 0)
    return None
