"""The classes of a model file: their bases, what they make, and what the file offers and imports."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from auxtap.rewriters.backbones.backbones import parse_quietly

_HEAD_FLAG = "capture_aux_hidden_states"


@dataclass(frozen=True)
class ModelClass:
    """A class of a model file; `makes` are the names of classes that its makers may call."""

    name: str
    bases: tuple[str, ...]
    makes: tuple[str, ...]
    methods: frozenset[str]
    has_flag: bool


@dataclass(frozen=True)
class ModuleClasses:
    """The classes of one file, those of them that it offers to load, and the module that each imported name is from."""

    classes: tuple[ModelClass, ...]
    offered: frozenset[str]
    imports: Mapping[str, str]


@lru_cache(maxsize=1024)
def read_classes(data: bytes) -> ModuleClasses:
    """Return the classes of a model file.

    Raises:
        SyntaxError: it is not Python.
    """
    module, lines = parse_quietly(data), data.split(b"\n")
    found = [_read_class(node, lines) for node in module.body if isinstance(node, ast.ClassDef)]
    return ModuleClasses(tuple(found), frozenset(_offered(module)), dict(_imported(module)))


def _imported(module: ast.Module) -> Iterator[tuple[str, str]]:
    # Those of the module's own level, and within its tests and tries; a walk over everything costs ten times more.
    nested = [item for node in module.body if isinstance(node, ast.If | ast.Try) for item in node.body]
    for node in (*module.body, *nested):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, node.module.rpartition(".")[2]


def _offered(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "EntryClass" for target in targets):
            yield from (item.id for item in ast.walk(node) if isinstance(item, ast.Name) and item.id != "EntryClass")


def _read_class(node: ast.ClassDef, lines: Sequence[bytes]) -> ModelClass:
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    makers = [item for item in methods if item.name == "__init__" or item.name.startswith(("_init", "init_", "_build"))]
    calls = [call for maker in makers for call in ast.walk(maker) if isinstance(call, ast.Call)]
    makes = dict.fromkeys(name for call in calls for name in _called_names(call))
    source = b"\n".join(lines[node.lineno - 1 : node.end_lineno])
    return ModelClass(
        name=node.name,
        bases=tuple(name for base in node.bases if (name := _last_name(base))),
        makes=tuple(makes),
        methods=frozenset(item.name for item in methods),
        has_flag=_HEAD_FLAG.encode() in source,
    )


def _called_names(call: ast.Call) -> Iterator[str]:
    """Yield the class that a call may make: the callee, or one that is handed to a factory."""
    for node in (call.func, *call.args):
        if name := _last_name(node):
            yield name


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
