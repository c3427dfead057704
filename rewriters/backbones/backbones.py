"""Find the functions of a model file that run the decoder blocks, and whether they capture what enters them.

A question, not an edit: the standard library's parser answers it several times faster than one that keeps every
byte, and a sweep asks it of a hundred files a release.
"""

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from auxtap.rewriters.backbones.capture_loops import CAPTURE_SUFFIX, capture_loops, filled_names
from auxtap.rewriters.backbones.loops import LAYERS, PlainLoop, Refusal, find_plain_loop
from auxtap.rewriters.backbones.norms import find_final_norm
from auxtap.rewriters.backbones.objections import find_objection

_BATCH_NAME = "forward_batch"
_BATCH_ANNOTATIONS = ("ForwardBatch", "ForwardBatch | None", "Optional[ForwardBatch]")


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
        holders = [statement for statement in function.body if capture_loops(statement)]
        if len(holders) == 1 and (names := filled_names(function, holders[0])):
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


@lru_cache(maxsize=2)
def parse_quietly(data: bytes) -> ast.Module:
    """Parse a module without its warnings about escapes; who asks several things of a file parses it once.

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
        loop_line=min(loop.lineno for loop in capture_loops(holder)),
        accumulators=accumulators,
        batches=batches,
        exits=tuple(StageExit(statement.lineno) for statement in exits),
        early_returns=tuple(return_lines(before)),
        objection=find_objection(function, holder, self_name, accumulators),
    )


def _parameters(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


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
