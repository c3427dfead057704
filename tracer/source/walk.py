"""Walk a libcst tree quickly, leaving out everything that is only layout."""

import dataclasses
from collections.abc import Iterator
from functools import cache
from typing import TypeVar

import libcst as cst
import libcst.matchers as m

NodeT = TypeVar("NodeT", bound=cst.CSTNode)

# Visitors of libcst also go through whitespace and build their results by copying; this is many times faster.
_LAYOUT = ("whitespace", "leading_lines", "lines_after", "trailing_whitespace", "lpar", "rpar", "header", "footer")


@cache
def _field_names(node_type: type[cst.CSTNode]) -> tuple[str, ...]:
    names = (item.name for item in dataclasses.fields(node_type))
    return tuple(name for name in names if not name.startswith(_LAYOUT))


_NODE_TYPES: dict[type, bool] = {}


def _is_node_type(kind: type) -> bool:
    # Asking an abstract base class about an instance is slow, and there are few types.
    known = _NODE_TYPES.get(kind)
    if known is None:
        known = _NODE_TYPES[kind] = issubclass(kind, cst.CSTNode)
    return known


def children_of(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the direct children that are not layout."""
    children: list[cst.CSTNode] = []
    for name in _field_names(type(node)):
        value = getattr(node, name)
        kind = type(value)
        if kind is tuple or kind is list:
            children.extend(item for item in value if _is_node_type(type(item)))
        elif _is_node_type(kind):
            children.append(value)
    return children


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield `node` and all below it, parents before children."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        children = children_of(current)
        children.reverse()
        stack.extend(children)


def parents_of(node: cst.CSTNode) -> dict[cst.CSTNode, cst.CSTNode]:
    """Return the parent of everything below `node`, in the order of `walk`."""
    parents: dict[cst.CSTNode, cst.CSTNode] = {}
    stack = [node]
    while stack:
        current = stack.pop()
        children = children_of(current)
        for child in children:
            parents[child] = current
        children.reverse()
        stack.extend(children)
    return parents


def find(node: cst.CSTNode, kind: type[NodeT], pattern: m.BaseMatcherNode | None = None) -> Iterator[NodeT]:
    """Yield the nodes of one type at or below `node` that match `pattern`, outer ones first."""
    for item in walk(node):
        if isinstance(item, kind) and (pattern is None or m.matches(item, pattern)):
            yield item
