"""Give functions in memory the code that the patched file would give them.

A function keeps its identity, so that whoever holds it (a class, a decorator, another plugin's hook) runs the new
code. Line numbers stay those of the file on disk: an inserted statement counts to the line before which it stands.
"""

import ast
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from auxtap.serving.plugin.patches import PatchedSource, PluginRefusedError

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class ChangedFunction:
    """A function that the patch inserts into: its code in the file, and its code in the patched file."""

    names: tuple[str, ...]
    before: CodeType
    after: CodeType


@dataclass(frozen=True)
class ModuleChange:
    """All that the patch does to a module; `statements` are those it inserts outside of functions."""

    statements: CodeType
    functions: tuple[ChangedFunction, ...]


def put_in(module: ModuleType, source: PatchedSource) -> None:
    """Do to an imported module what the patch does to its file.

    Raises:
        PluginRefusedError: a function is not, in memory, what its file says: somebody else has changed it.
    """
    change = plan_change(source, str(module.__file__))
    live = [(_find_function(module, function), function) for function in change.functions]
    exec(change.statements, module.__dict__)  # noqa: S102 - the gate line, as the patched file would run it
    for function, planned in live:
        function.__code__ = planned.after


def plan_change(source: PatchedSource, filename: str) -> ModuleChange:
    """Compile what the patch does to a file.

    Raises:
        PluginRefusedError: it inserts where nothing in memory can be changed, such as the body of a class.
    """
    inserted = sorted(line.line for line in source.change.inserted)
    tree = ast.parse(source.after)
    outside: list[ast.stmt] = [statement for statement in tree.body if statement.lineno in inserted]
    places = [_place(tree, line) for line in inserted if line not in {statement.lineno for statement in outside}]
    for node in ast.walk(tree):
        _count_lines_of_the_original(node, inserted)
    after, before = (compile(text, filename, "exec", dont_inherit=True) for text in (tree, source.before))
    statements = compile(ast.Module(outside, []), filename, "exec", dont_inherit=True)
    functions = {
        names: ChangedFunction(names, _find_code(before, node), _find_code(after, node)) for names, node in places
    }
    return ModuleChange(statements, tuple(functions.values()))


def _place(tree: ast.Module, line: int) -> tuple[tuple[str, ...], _Function]:
    """Return the function that holds a line: of the module, or of a class of the module."""
    for owner in tree.body:
        for names, node in _functions(owner):
            if node.lineno < line <= (node.end_lineno or 0):
                within = [item for item in ast.walk(node) if isinstance(item, _Function | ast.Lambda | ast.ClassDef)]
                if all(item is node or not item.lineno <= line <= (item.end_lineno or 0) for item in within):
                    return names, node
    raise PluginRefusedError(f"line {line} of a patched file is in no function that can be changed in memory")


def _functions(owner: ast.stmt) -> Iterator[tuple[tuple[str, ...], _Function]]:
    if isinstance(owner, _Function):
        yield (owner.name,), owner
    elif isinstance(owner, ast.ClassDef):
        for node in owner.body:
            if isinstance(node, _Function):
                yield (owner.name, node.name), node


def _count_lines_of_the_original(node: ast.AST, inserted: list[int]) -> None:
    for attribute in ("lineno", "end_lineno"):
        line = getattr(node, attribute, None)
        if line is not None:
            setattr(node, attribute, line - bisect_left(inserted, line))


def _find_code(module: CodeType, node: _Function) -> CodeType:
    """Return the code of a function whose lines are counted as the module's are."""
    first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
    found = [code for code in _all_code(module) if (code.co_name, code.co_firstlineno) == (node.name, first)]
    if len(found) != 1:
        raise PluginRefusedError(f"{node.name} at line {first} is {len(found)} functions, not one")
    return found[0]


def _all_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_code(constant)


def _find_function(module: ModuleType, planned: ChangedFunction) -> FunctionType:
    """Return the function in memory, behind whatever decorators are around it."""
    name = f"{module.__name__}.{'.'.join(planned.names)}"
    found: Any = module.__dict__.get(planned.names[0])
    for inner in planned.names[1:]:
        found = getattr(found, "__dict__", {}).get(inner)
    while found is not None:
        if isinstance(found, FunctionType) and found.__code__ == planned.before:
            return found
        found = getattr(found, "__func__", None) or getattr(found, "__wrapped__", None)
    raise PluginRefusedError(f"{name} is not the function of its file: another plugin or patch has replaced it")
