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
        if isinstance(node, ast.If) and _tests_next_number(node.test, index, owner):
            if objection := _object_to_next(function, holder, loop, calls, node, owner, accumulators):
                return objection
        elif not _tests_number(node.test, index, owner):
            return f"it tests {ast.unparse(node.test)}, not the number of the block"
        elif isinstance(node, ast.If) and node.lineno > calls[0].lineno:
            return "it captures behind the block: an entry of its list is not a capture index"
        if isinstance(node, ast.If) and not copying and not _fills_with_fresh(node):
            return "it keeps a tensor that later blocks may write over, or leaves the residual out"
    return ""


def _object_to_next(
    function: ast.FunctionDef,
    holder: ast.stmt,
    loop: ast.For,
    calls: list[ast.Call],
    node: ast.If,
    owner: str,
    accumulators: tuple[str, ...],
) -> str:
    """Say why `i + 1 in self.layers_to_capture` behind block i does not take what enters block i + 1.

    Entry 0 of a stage has no block before it: a test before the loop must take it (gpt_oss from 0.5.17 to 0.5.20).
    """
    if len(calls) != 1 or node.orelse or _last_statement(loop) is not node:
        return "it captures before the end of a round: what enters the next block may be something else"
    taken = {name.id for value in _filled_with(node) for name in ast.walk(value) if isinstance(name, ast.Name)}
    bound = [item for item in ast.walk(loop) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)]
    made = {id(name) for call in _holding(loop, calls) for target in call.targets for name in ast.walk(target)}
    if any(name.id in taken and id(name) not in made for name in bound):
        return "what it captures behind a block is changed before the next one"
    before = function.body[: function.body.index(holder)]
    first = f"{owner}.start_layer in {owner}.{LAYER_LIST}"
    tests = [item for item in before if isinstance(item, ast.If) and ast.unparse(item.test) == first]
    if len(tests) != 1 or not _fills_with_fresh(tests[0]) or not set(_filled(tests[0])) <= set(accumulators):
        return "it tests the number of the next block, and nothing before the loop takes what enters its first one"
    return ""


def _last_statement(loop: ast.For) -> ast.stmt:
    """Return what ends a round, within a `with` too."""
    last = loop.body[-1]
    while isinstance(last, ast.With):
        last = last.body[-1]
    return last


def _holding(loop: ast.For, calls: list[ast.Call]) -> list[ast.Assign]:
    return [item for item in ast.walk(loop) if isinstance(item, ast.Assign) and item.value in calls]


def _tests_number(test: ast.expr, index: str | None, owner: str) -> bool:
    """Tell whether a test holds for the blocks whose numbers the list names (or which are marked as such)."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    naming = [part for part in parts if any(map(tests_layer, ast.walk(part)))]
    return len(naming) == 1 and _names_number(naming[0], index, owner)


def _tests_next_number(test: ast.expr, index: str | None, owner: str) -> bool:
    return index is not None and ast.unparse(test) == f"{index} + 1 in {owner}.{LAYER_LIST}"


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
    return [call.args[0] for call in _fills(node) if call.args]


def _filled(node: ast.If) -> list[str]:
    return [ast.unparse(call.func.value) for call in _fills(node) if isinstance(call.func, ast.Attribute)]


def _fills(node: ast.If) -> list[ast.Call]:
    calls = [item for statement in node.body for item in ast.walk(statement) if isinstance(item, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in FILLS]


def _fills_with_fresh(node: ast.If) -> bool:
    """Tell whether an accumulator is given new tensors only."""
    return all(_is_fresh(value, node) for value in _filled_with(node))


def _is_fresh(value: ast.expr, within: ast.If) -> bool:
    """Tell whether a value is a new tensor: a sum, what a call returns, or a name bound to one just before."""
    if isinstance(value, ast.IfExp):
        # Without a residual there is nothing to add: that is the first block, whose input is not captured.
        return _is_fresh(value.body, within) or _is_fresh(value.orelse, within)
    if isinstance(value, ast.Name):
        return any(value.id in assigned_names(node) for item in within.body for node in ast.walk(item))
    return isinstance(value, ast.BinOp | ast.Call)
