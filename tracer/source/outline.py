"""Where the definitions of a file lie, so that only those that matter are parsed in full."""

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from auxtap.core.errors import SourceError

# Methods that may make what an object is built of, beside `__init__`.
_MAKERS = ("__init__", "_init", "init_", "_build")
# The largest file of SGLang has half a MiB; parsing what is far larger takes gigabytes.
MAX_SOURCE_BYTES = 4 << 20


@dataclass(frozen=True)
class Unit:
    """A function, a class header, or a statement outside functions: the smallest piece parsed on its own.

    `classes` names the enclosing classes, outermost first; lines are 1-based and inclusive, decorators included.
    """

    classes: tuple[str, ...]
    name: str | None
    first_line: int
    last_line: int
    is_class_header: bool = False


@dataclass(frozen=True)
class ClassOutline:
    """A class at module level: its bases as written (last name only) and its methods.

    `made` names, for each attribute that a method of making binds, what is called for it (`norm`: `RMSNorm`), `makes`
    everything that such methods call or hand to what they call; `last_line` is where the class ends.
    """

    name: str
    bases: tuple[str, ...]
    line: int
    methods: tuple[str, ...]
    last_line: int = field(default=0, compare=False)
    made: Mapping[str, frozenset[str]] = field(default_factory=dict, compare=False)
    makes: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Outline:
    """The units and classes of one file, in source order.

    `imports` gives the last name of the module that each imported name is from.
    """

    lines: tuple[str, ...]
    units: tuple[Unit, ...]
    classes: tuple[ClassOutline, ...]
    imports: Mapping[str, str]


def decode_source(path: PurePosixPath, data: bytes) -> str:
    """Decode by byte-order mark or coding line, with `\\n` as the only line end.

    Raises:
        SourceError: the bytes do not fit their declared encoding, or are more than any source file has.
    """
    if len(data) > MAX_SOURCE_BYTES:
        raise SourceError(f"{path} has {len(data) >> 20} MiB", hint="is it a Python source file?")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise SourceError(f"cannot decode {path}: {error}", hint="is it a Python source file?") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_quietly(source: str | bytes) -> ast.Module:
    """Parse a module without its warnings about escapes.

    Raises:
        SyntaxError: it is not Python.
    """
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(source)


def outline_source(path: PurePosixPath, text: str) -> Outline:
    """Find the units and classes of one file.

    Raises:
        SourceError: this interpreter's parser refuses the file.
    """
    try:
        tree = parse_quietly(text)
    except (RecursionError, MemoryError):
        raise SourceError(f"cannot parse {path}: it is nested too deeply", hint="look at it yourself") from None
    except (SyntaxError, ValueError) as error:
        raise SourceError(f"cannot parse {path}: {error}", hint="is it a Python source file?") from error
    lines = tuple(text.split("\n"))
    return Outline(
        lines=lines,
        units=tuple(_merge_shared_lines(_walk_units(tree.body, (), lines))),
        classes=tuple(_outline_class(node) for node in tree.body if isinstance(node, ast.ClassDef)),
        imports=dict(_imported(tree)),
    )


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    # Those of the module's own level, and within its tests and tries; a walk over everything costs ten times more.
    nested = [item for node in tree.body if isinstance(node, ast.If | ast.Try) for item in node.body]
    for node in (*tree.body, *nested):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, node.module.rpartition(".")[2]


def _outline_class(node: ast.ClassDef) -> ClassOutline:
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    bases = (_last_name(base) for base in node.bases)
    made: dict[str, frozenset[str]] = {}
    makes: dict[str, None] = {}
    for child in (child for item in methods if item.name.startswith(_MAKERS) for child in ast.walk(item)):
        if isinstance(child, ast.Call):
            makes |= dict.fromkeys(name for each in (child.func, *child.args) if (name := _last_name(each)))
        elif isinstance(child, ast.Assign) and isinstance(child.value, ast.Call):
            name = _last_name(child.value.func)
            for target in child.targets:
                if name and isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    made[target.attr] = made.get(target.attr, frozenset()) | {name}
    return ClassOutline(
        name=node.name,
        bases=tuple(name for name in bases if name),
        line=node.lineno,
        methods=tuple(item.name for item in methods),
        last_line=node.end_lineno or node.lineno,
        made=made,
        makes=tuple(makes),
    )


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return None


def _walk_units(body: list[ast.stmt], classes: tuple[str, ...], lines: Sequence[str]) -> Iterator[Unit]:
    for node in body:
        if isinstance(node, ast.ClassDef) and not _shares_its_header(node.body[0], node, lines):
            yield Unit(classes, node.name, _first_line(node, lines), _first_line(node.body[0], lines) - 1, True)
            yield from _walk_units(node.body, (*classes, node.name), lines)
        else:
            name = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
            yield Unit(classes, name, _first_line(node, lines), node.end_lineno or node.lineno)


def _shares_its_header(first: ast.stmt, owner: ast.ClassDef, lines: Sequence[str]) -> bool:
    """Tell whether a class's first statement stands on a line of its header: `class A: pass`, `): pass`."""
    begin = _first_line(first, lines)
    before = lines[begin - 1].encode()[: first.col_offset] if begin == first.lineno else b""
    return begin <= owner.lineno or bool(before.strip())


def _first_line(node: ast.stmt, lines: Sequence[str]) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    # What a decorator names may begin lines behind its `@`.
    while decorators and first > 1 and not lines[first - 1].lstrip().startswith("@"):
        first -= 1
    return first


def _merge_shared_lines(units: Iterator[Unit]) -> Iterator[Unit]:
    previous: Unit | None = None
    for unit in units:
        if previous is not None and unit.first_line <= previous.last_line:
            previous = replace(previous, name=None, last_line=max(previous.last_line, unit.last_line))
            continue
        if previous is not None:
            yield previous
        previous = unit
    if previous is not None:
        yield previous
