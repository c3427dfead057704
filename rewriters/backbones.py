"""Find the functions of a model file that run the decoder blocks, and whether they capture what enters them.

A question, not an edit: the standard library's parser answers it several times faster than one that keeps every
byte, and a sweep asks it of a hundred files a release.
"""

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from auxtap.rewriters.loops import LAYERS, PlainLoop, Refusal, block_calls, find_plain_loop, loop_index
from auxtap.rewriters.norms import find_final_norm

CAPTURE_SUFFIX = "_to_capture"
LAYER_LIST, LAYER_MARK = "layers_to_capture", "_is_layer_to_capture"
_BATCH_NAME = "forward_batch"
_BATCH_ANNOTATIONS = ("ForwardBatch", "ForwardBatch | None", "Optional[ForwardBatch]")
_FILLS = ("append", "extend", "capture")
# Made by a call of one of these, an accumulator keeps a copy of what it is given (0.5.17 and 0.5.21 on).
_COPYING = ("AuxHiddenStatePacker", "AuxHiddenStateList")


@dataclass(frozen=True)
class StageExit:
    """`if not <self>.pp_group.is_last_rank:` at the function's own level, which returns."""

    line: int


@dataclass(frozen=True)
class CaptureFunction:
    """A function with a capture loop.

    `accumulators` are the names that the loop fills where a layer test says so, `batches` the parameters of class
    ForwardBatch, `exits` the stage exits behind the loop, `early_returns` the lines of returns before the first of
    them. `objection` says why an entry of the layer list is not the capture index of a state that stays as it was;
    empty where it is.
    """

    class_name: str
    name: str
    owner: str
    line: int
    loop_line: int
    accumulators: tuple[str, ...]
    batches: tuple[str, ...]
    exits: tuple[StageExit, ...]
    early_returns: tuple[int, ...]
    objection: str

    @property
    def scope(self) -> str:
        """The qualified name."""
        return f"{self.class_name}.{self.name}"


@dataclass(frozen=True)
class LoopFunction:
    """A function with a decoder loop and no capture code, which a line at the top of a round can tap."""

    plain: PlainLoop
    batches: tuple[str, ...]
    exits: tuple[StageExit, ...]

    @property
    def scope(self) -> str:
        """The qualified name."""
        return self.plain.scope


@dataclass(frozen=True)
class BackboneSurvey:
    """Every class of a model file that runs blocks: capturing, to be tapped, or neither and why.

    `norms` names the final norm of those whose final state can be had before it too.
    """

    captures: tuple[CaptureFunction, ...]
    loops: tuple[LoopFunction, ...]
    refused: Mapping[str, str]
    norms: Mapping[str, str]


@dataclass(frozen=True)
class CaptureSurvey:
    """What a model file holds: capture functions, and scopes that name captured layers in another way."""

    functions: tuple[CaptureFunction, ...]
    unrecognised: tuple[str, ...]


@lru_cache(maxsize=1024)
def survey_capture(data: bytes) -> CaptureSurvey:
    """Return the capture functions of a model file.

    Raises:
        SyntaxError: it is not Python.
    """
    if CAPTURE_SUFFIX.encode() not in data:
        return CaptureSurvey((), ())
    found: list[CaptureFunction] = []
    unrecognised: list[str] = []
    for owner, function in _methods(parse_quietly(data)):
        holders = [statement for statement in function.body if _capture_loops(statement)]
        if len(holders) == 1 and (names := _filled(function, holders[0])):
            found.append(_describe(owner, function, holders[0], names))
        elif holders:
            unrecognised.append(f"{owner.name}.{function.name}")
    return CaptureSurvey(tuple(found), tuple(unrecognised))


@lru_cache(maxsize=1024)
def survey_backbones(data: bytes) -> BackboneSurvey:
    """Return every class of a model file that runs decoder blocks in its forward.

    Raises:
        SyntaxError: it is not Python.
    """
    if f".{LAYERS}".encode() not in data:
        return BackboneSurvey((), (), {}, {})
    survey = survey_capture(data)
    capturing = {function.class_name for function in survey.functions}
    refused = {
        scope.partition(".")[0]: "its way of capturing is not recognised"
        for scope in survey.unrecognised
        if scope.partition(".")[0] not in capturing
    }
    refused |= {function.class_name: function.objection for function in survey.functions if function.objection}
    captures = tuple(function for function in survey.functions if function.class_name not in refused)
    loops: list[LoopFunction] = []
    for owner, function in _methods(parse_quietly(data)):
        if owner.name in capturing or owner.name in refused or function.name != "forward":
            continue
        found = find_plain_loop(owner, function, data)
        described = found if found is None or isinstance(found, Refusal) else _tappable(function, found)
        if isinstance(described, Refusal):
            refused[owner.name] = described.reason
        elif described is not None:
            loops.append(described)
    lines = {capture.scope: capture.loop_line for capture in captures}
    lines |= {loop.scope: loop.plain.loop_line for loop in loops}
    norms: dict[str, str] = {}
    for owner, function in _methods(parse_quietly(data)):
        line = lines.get(f"{owner.name}.{function.name}")
        norm = find_final_norm(owner, function, line) if line is not None else None
        if norm is not None:
            norms[owner.name] = norm
    return BackboneSurvey(captures, tuple(loops), refused, norms)


def _tappable(function: ast.FunctionDef, plain: PlainLoop) -> LoopFunction | Refusal:
    batches = tuple(parameter.arg for parameter in _parameters(function) if _is_batch(parameter))
    if len(batches) != 1:
        return Refusal(f"its forward has {len(batches)} parameters of class ForwardBatch")
    position = next(at for at, statement in enumerate(function.body) if statement.lineno == plain.loop_line)
    behind = function.body[position + 1 :]
    exits = tuple(StageExit(item.lineno) for item in behind if _is_stage_exit(item, plain.owner))
    knows_stages = any(isinstance(node, ast.Name) and node.id == "PPProxyTensors" for node in ast.walk(function))
    if len(exits) > 1 or (knows_stages and not exits):
        return Refusal(f"{len(exits)} stage exits stand behind its loop")
    until = next((at for at, item in enumerate(function.body) if exits and item.lineno == exits[0].line), position)
    if leaves := list(return_lines(function.body[:until])):
        return Refusal(f"a return at line {leaves[0]} may come before it is done")
    return LoopFunction(plain, batches, exits)


def parse_quietly(data: bytes) -> ast.Module:
    """Parse a module without its warnings about escapes.

    Raises:
        SyntaxError: it is not Python.
    """
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(data)


def _methods(module: ast.Module) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
    for owner in module.body:
        if isinstance(owner, ast.ClassDef):
            for function in owner.body:
                setting = isinstance(function, ast.FunctionDef) and function.name.startswith(("set_", "__"))
                if isinstance(function, ast.FunctionDef) and not setting:
                    yield owner, function


def _capture_loops(statement: ast.stmt) -> list[ast.For]:
    loops = [node for node in ast.walk(statement) if isinstance(node, ast.For)]
    return [loop for loop in loops if any(map(tests_layer, ast.walk(loop)))]


def tests_layer(node: ast.AST) -> bool:
    """Tell whether a node names the captured layers: `layers_to_capture`, `_is_layer_to_capture`."""
    if isinstance(node, ast.Attribute):
        return node.attr.endswith(CAPTURE_SUFFIX)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(CAPTURE_SUFFIX)


def _filled(function: ast.FunctionDef, holder: ast.stmt) -> tuple[str, ...]:
    """Return the names made before `holder` that its loops fill, or hand to a layer, where a layer test says so."""
    before = function.body[: function.body.index(holder)]
    made = {name for statement in before for name in _made_names(statement)}
    filled: dict[str, None] = {}
    for node in (node for loop in _capture_loops(holder) for node in ast.walk(loop)):
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
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _FILLS:
            yield from _handed(call.func)


def _handed(node: ast.expr) -> Iterator[str]:
    """Yield the name of `name` or `name.fill`."""
    if isinstance(node, ast.Attribute) and node.attr in _FILLS:
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _describe(
    owner: ast.ClassDef, function: ast.FunctionDef, holder: ast.stmt, accumulators: tuple[str, ...]
) -> CaptureFunction:
    parameters = _parameters(function)
    batches = tuple(parameter.arg for parameter in parameters if _is_batch(parameter))
    self_name = parameters[0].arg if parameters else ""
    behind = function.body[function.body.index(holder) + 1 :]
    exits = [statement for statement in behind if _is_stage_exit(statement, self_name)]
    before = function.body[: function.body.index(exits[0] if exits else holder)]
    return CaptureFunction(
        class_name=owner.name,
        name=function.name,
        owner=self_name,
        line=function.lineno,
        loop_line=min(loop.lineno for loop in _capture_loops(holder)),
        accumulators=accumulators,
        batches=batches,
        exits=tuple(StageExit(statement.lineno) for statement in exits),
        early_returns=tuple(return_lines(before)),
        objection=_objection(function, holder, self_name, accumulators),
    )


def _parameters(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _objection(function: ast.FunctionDef, holder: ast.stmt, owner: str, accumulators: tuple[str, ...]) -> str:
    """Return why entry i of the layer list does not stand for a lasting copy of what enters block i."""
    loops = _capture_loops(holder)
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
    named = [node.value for node in made if set(_assigned(node)) & set(accumulators)]
    return any(word in ast.unparse(value) for value in named for word in _COPYING)


def _filled_with(node: ast.If) -> list[ast.expr]:
    calls = [item for statement in node.body for item in ast.walk(statement) if isinstance(item, ast.Call)]
    fills = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in _FILLS]
    return [call.args[0] for call in fills if call.args]


def _is_fresh(value: ast.expr, within: ast.If) -> bool:
    """Tell whether a value is a new tensor: a sum, what a call returns, or a name bound to one just before."""
    if isinstance(value, ast.IfExp):
        # Without a residual there is nothing to add: that is the first block, whose input is not captured.
        return _is_fresh(value.body, within) or _is_fresh(value.orelse, within)
    if isinstance(value, ast.Name):
        return any(value.id in _assigned(node) for item in within.body for node in ast.walk(item))
    return isinstance(value, ast.BinOp | ast.Call)


def _is_batch(parameter: ast.arg) -> bool:
    if parameter.annotation is None:
        return parameter.arg == _BATCH_NAME
    return ast.unparse(parameter.annotation).strip("'\"") in _BATCH_ANNOTATIONS


def _is_stage_exit(statement: ast.stmt, owner: str) -> bool:
    tested = isinstance(statement, ast.If) and ast.unparse(statement.test) == f"not {owner}.pp_group.is_last_rank"
    return tested and isinstance(statement, ast.If) and any(return_lines(statement.body))


def return_lines(statements: Sequence[ast.stmt]) -> Iterator[int]:
    """Yield the lines of the returns of a function's own statements, those of functions within it left aside."""
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return):
            yield node.lineno
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def _assigned(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Assign):
        return []
    return [target.id for target in node.targets if isinstance(target, ast.Name)]
