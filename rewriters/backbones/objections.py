"""Say why an entry of a model's layer list is not the capture index of a state that stays as it was."""

import ast

from auxtap.rewriters.backbones.capture_loops import FILLS, assigned_names, capture_loops, tests_layer
from auxtap.rewriters.backbones.loops import block_calls, loop_index

_STAGE_BLOCKS = "range({0}.start_layer, {0}.end_layer)"
_NOT_NEXT = "it tests the number of the next block, and what enters that one, or a stage's first, may be something else"
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
    tests = [node for node in ast.walk(loop) if isinstance(node, ast.If | ast.IfExp)]
    tests = [node for node in tests if any(map(tests_layer, ast.walk(node.test)))]
    if any(_tests_next_number(node.test, index, owner) for node in tests):
        return "" if len(tests) == 1 and _takes_next(function, loop, owner) else _NOT_NEXT
    copying = _makes_copies(function, accumulators)
    for node in tests:
        if not _tests_number(node.test, index, owner):
            return f"it tests {ast.unparse(node.test)}, not the number of the block"
        if isinstance(node, ast.If):
            if node.lineno > calls[0].lineno:
                return "it captures behind the block: an entry of its list is not a capture index"
            if not copying and not all(_is_fresh(value, node) for value in _filled_with(node)):
                return "it keeps a tensor that later blocks may write over, or leaves the residual out"
            if _is_changed_before(loop, node, calls[0]):
                return "what it captures is changed before it enters the block"
    return ""


def _is_changed_before(loop: ast.For, capture: ast.If, call: ast.Call) -> bool:
    """Tell whether a name that is captured is bound anew, or a round ended, between the capture and the block."""
    taken = {node.id for value in _filled_with(capture) for node in ast.walk(value) if isinstance(node, ast.Name)}
    for node in ast.walk(loop):
        line = getattr(node, "lineno", 0)
        if not (capture.end_lineno or 0) < line < call.lineno:
            continue
        binds = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in taken
        if binds or isinstance(node, ast.Continue | ast.Break):
            return True
    return False


def _takes_next(function: ast.FunctionDef, loop: ast.For, owner: str) -> bool:
    """Tell whether `i + 1 in self.layers_to_capture` behind block i takes what enters block i + 1, and every entry.

    Recognised is one form only (gpt_oss from 0.5.17 to 0.5.20): a round ends with the block's call and the capture of
    the sum of what it returned, and touches neither before; the same capture right before the loop takes what enters
    the stage's first block, which has no block before it.
    """
    body = loop.body
    while len(body) == 1 and isinstance(body[0], ast.With):
        body = body[0].body
    if loop not in function.body or len(body) < 2 or ast.unparse(loop.iter) != _STAGE_BLOCKS.format(owner):
        return False
    *setting_up, call, capture = body
    before = function.body[function.body.index(loop) - 1]
    names = _returned_by_block(call, loop, owner)
    if len(names) != 2 or not isinstance(capture, ast.If) or not isinstance(before, ast.If):
        return False
    touched = {node.id for item in setting_up for node in ast.walk(item) if isinstance(node, ast.Name)}
    leaves = any(isinstance(node, ast.Continue | ast.Break) for item in setting_up for node in ast.walk(item))
    first = f"{owner}.start_layer in {owner}.{LAYER_LIST}"
    same = [ast.dump(item) for item in before.body] == [ast.dump(item) for item in capture.body]
    return (
        not touched & set(names)
        and not leaves
        and not capture.orelse
        and not before.orelse
        and same
        and ast.unparse(before.test) == first
        and _captures_sum(capture, *names)
    )


def _returned_by_block(statement: ast.stmt, loop: ast.For, owner: str) -> tuple[str, ...]:
    """Return the names that a statement binds to what the loop's only block call returns, given them as they are."""
    calls = block_calls(loop, owner)
    if len(calls) != 1 or not isinstance(statement, ast.Assign) or statement.value is not calls[0]:
        return ()
    target = statement.targets[0]
    elements = target.elts if isinstance(target, ast.Tuple) and len(statement.targets) == 1 else []
    names = tuple(item.id for item in elements if isinstance(item, ast.Name))
    given = [*calls[0].args, *(keyword.value for keyword in calls[0].keywords)]
    handed_in = {item.id for item in given if isinstance(item, ast.Name)}
    return names if len(names) == len(elements) and set(names) <= handed_in else ()


def _captures_sum(capture: ast.If, hidden: str, residual: str) -> bool:
    """Tell whether all that a branch does is to append the sum of both to one name."""
    appended = {f"{hidden} + {residual}", f"{hidden} + {residual} if {residual} is not None else {hidden}"}
    match capture.body:
        case [ast.Expr(ast.Call(func=ast.Attribute(ast.Name(), "append"), args=[value], keywords=[]))]:
            return ast.unparse(value) in appended
    return False


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
