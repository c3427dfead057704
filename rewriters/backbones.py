"""Find the functions of a model file that run the decoder blocks and capture what enters them.

A question, not an edit: the standard library's parser answers it several times faster than one that keeps every
byte, and a sweep asks it of a hundred files a release.
"""

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CAPTURE_SUFFIX = "_to_capture"
_BATCH_NAME = "forward_batch"
_BATCH_ANNOTATIONS = ("ForwardBatch", "ForwardBatch | None", "Optional[ForwardBatch]")
_FILLS = ("append", "extend", "capture")


@dataclass(frozen=True)
class StageExit:
    """`if not <self>.pp_group.is_last_rank:` at the function's own level, which returns."""

    line: int


@dataclass(frozen=True)
class CaptureFunction:
    """A function with a capture loop.

    `accumulators` are the names that the loop fills where a layer test says so, `batches` the parameters of class
    ForwardBatch, `exits` the stage exits behind the loop, `early_returns` the lines of returns before the first of
    them.
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

    @property
    def scope(self) -> str:
        """The qualified name."""
        return f"{self.class_name}.{self.name}"


@dataclass(frozen=True)
class CaptureSurvey:
    """What a model file holds: capture functions, and scopes that name captured layers in another way."""

    functions: tuple[CaptureFunction, ...]
    unrecognised: tuple[str, ...]


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
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
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
    )


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
