"""Questions about a loop that captures: where a layer test stands, and which names it fills."""

import ast
from collections.abc import Iterator

CAPTURE_SUFFIX = "_to_capture"
FILLS = ("append", "extend", "capture")


def capture_loops(statement: ast.stmt) -> list[ast.For]:
    """Return the loops at or below a statement in which a layer test stands."""
    loops = [node for node in ast.walk(statement) if isinstance(node, ast.For)]
    return [loop for loop in loops if any(map(tests_layer, ast.walk(loop)))]


def tests_layer(node: ast.AST) -> bool:
    """Tell whether a node names the captured layers: `layers_to_capture`, `_is_layer_to_capture`."""
    if isinstance(node, ast.Attribute):
        return node.attr.endswith(CAPTURE_SUFFIX)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(CAPTURE_SUFFIX)


def filled_names(function: ast.FunctionDef, holder: ast.stmt) -> tuple[str, ...]:
    """Return the names made before `holder` that its loops fill, or hand to a layer, where a layer test says so."""
    before = function.body[: function.body.index(holder)]
    made = {name for statement in before for name in _made_names(statement)}
    filled: dict[str, None] = {}
    for node in (node for loop in capture_loops(holder) for node in ast.walk(loop)):
        if isinstance(node, ast.If) and any(map(tests_layer, ast.walk(node.test))):
            filled |= dict.fromkeys(name for name in _appended(node) if name in made)
        if isinstance(node, ast.IfExp) and any(map(tests_layer, ast.walk(node.test))):
            filled |= dict.fromkeys(name for name in _handed(node.body) if name in made)
    return tuple(filled)


def _made_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds to an empty list or to what a call returns."""
    for node in ast.walk(statement):
        makes = isinstance(node, ast.Assign) and isinstance(node.value, ast.Call | ast.List | ast.IfExp)
        if isinstance(node, ast.Assign) and makes:
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _appended(node: ast.If) -> Iterator[str]:
    for call in (item for statement in node.body for item in ast.walk(statement)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in FILLS:
            yield from _handed(call.func)


def _handed(node: ast.expr) -> Iterator[str]:
    """Yield the name of `name` or `name.fill`."""
    if isinstance(node, ast.Attribute) and node.attr in FILLS:
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def assigned_names(node: ast.AST) -> list[str]:
    """Return the plain names that an assignment binds."""
    if not isinstance(node, ast.Assign):
        return []
    return [target.id for target in node.targets if isinstance(target, ast.Name)]
