"""Say why an entry of a model's layer list is not the capture index of a state that stays as it was."""

import ast

from auxtap.rewriters.capture_loops import FILLS, assigned_names, capture_loops, tests_layer
from auxtap.rewriters.loops import block_calls, loop_index

LAYER_LIST, LAYER_MARK = "layers_to_capture", "_is_layer_to_capture"
# Made by a call of one of these, an accumulator keeps a copy of what it is given (0.5.17 and 0.5.21 on).
_COPYING = ("AuxHiddenStatePacker", "AuxHiddenStateList")


def find_objection(function: ast.FunctionDef, holder: ast.stmt, owner: str, accumulators: tuple[str, ...]) -> str:
    """Return why entry i of the layer list does not stand for a lasting copy of what enters block i."""
    loops = capture_loops(holder)
    if len(loops) != 1:
        return f"{len(loops)} loops capture"
    loop = loops[0]
    index, calls = loop_index(loop, owner), block_calls(loop, owner)
    if not calls:
        return "its loop calls no block of self.layers"
    copying = _makes_copies(function, accumulators)
    for node in ast.walk(loop):
        if not isinstance(node, ast.If | ast.IfExp) or not any(map(tests_layer, ast.walk(node.test))):
            continue
        if not _tests_number(node.test, index, owner):
            return f"it tests {ast.unparse(node.test)}, not the number of the block"
        if isinstance(node, ast.If):
            if node.lineno > calls[0].lineno:
                return "it captures behind the block: an entry of its list is not a capture index"
            if not copying and not all(map(_is_fresh, _filled_with(node), [node] * len(_filled_with(node)))):
                return "it keeps a tensor that later blocks may write over, or leaves the residual out"
    return ""


def _tests_number(test: ast.expr, index: str | None, owner: str) -> bool:
    """Tell whether a test holds for the blocks whose numbers the list names (or which are marked as such)."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    naming = [part for part in parts if any(map(tests_layer, ast.walk(part)))]
    return len(naming) == 1 and _names_number(naming[0], index, owner)


def _names_number(part: ast.expr, index: str | None, owner: str) -> bool:
    match part:
        case ast.Compare(left=ast.Name(name), ops=[ast.In()], comparators=[ast.Attribute(ast.Name(who), attribute)]):
            return name == index and (who, attribute) == (owner, LAYER_LIST)
        case ast.Call(func=ast.Name("getattr"), args=[ast.Name(), ast.Constant(mark), ast.Constant(default)]):
            return mark == LAYER_MARK and default is False
    return False


def _makes_copies(function: ast.FunctionDef, accumulators: tuple[str, ...]) -> bool:
    made = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    named = [node.value for node in made if set(assigned_names(node)) & set(accumulators)]
    return any(word in ast.unparse(value) for value in named for word in _COPYING)


def _filled_with(node: ast.If) -> list[ast.expr]:
    calls = [item for statement in node.body for item in ast.walk(statement) if isinstance(item, ast.Call)]
    fills = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in FILLS]
    return [call.args[0] for call in fills if call.args]


def _is_fresh(value: ast.expr, within: ast.If) -> bool:
    """Tell whether a value is a new tensor: a sum, what a call returns, or a name bound to one just before."""
    if isinstance(value, ast.IfExp):
        # Without a residual there is nothing to add: that is the first block, whose input is not captured.
        return _is_fresh(value.body, within) or _is_fresh(value.orelse, within)
    if isinstance(value, ast.Name):
        return any(value.id in assigned_names(node) for item in within.body for node in ast.walk(item))
    return isinstance(value, ast.BinOp | ast.Call)
