"""Parse single definitions of a file with libcst, with the metadata that matching needs."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

import libcst as cst
import libcst.matchers as m
from libcst.metadata import CodeRange, PositionProvider

from auxtap.core.errors import SourceError
from auxtap.tracer.source.outline import Outline, Unit, decode_source, outline_source
from auxtap.tracer.source.walk import NodeT, parents_of, walk

MODULE_SCOPE = "<module>"
_FRAGMENT_PLACE = re.compile(r"error at \d+:\d+: ")
_EMPTY_MODULE = cst.Module([])


def source_of(node: cst.CSTNode) -> str:
    """Return the source of `node` in one canonical line: comments, wrapping and spare parentheses gone."""
    text = _EMPTY_MODULE.code_for_node(node)
    try:
        return ast.unparse(ast.parse(f"({text}\n)", mode="eval"))
    except SyntaxError:
        return " ".join(text.split())


def last_name(node: cst.CSTNode) -> str | None:
    """Return `c` for `c`, `a.b.c` and calls of them: what a person would call the thing."""
    if isinstance(node, cst.Call):
        return last_name(node.func)
    if isinstance(node, cst.Attribute):
        return node.attr.value
    if isinstance(node, cst.Name):
        return node.value
    return None


class _Positions(PositionProvider):
    def of_module(self, module: cst.Module) -> Mapping[cst.CSTNode, CodeRange]:
        self._gen_impl(module)
        return {node: place for node, place in self._computed.items() if isinstance(place, CodeRange)}


def positions_of(module: cst.Module) -> Mapping[cst.CSTNode, CodeRange]:
    """Return the place of every node of a module that was just parsed.

    These are libcst's positions without its `MetadataWrapper`, which copies the tree, or visits all of it for nothing:
    the parser makes every node afresh, so no node stands in two places and no copy is needed.
    """
    return _Positions().of_module(module)


@dataclass(frozen=True, eq=False)
class Fragment:
    """One parsed unit; its nodes know their lines in the file and their parents, once somebody asks."""

    unit: Unit
    module: cst.Module
    line_offset: int

    @cached_property
    def positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        """The place of every node within the fragment."""
        return positions_of(self.module)

    @cached_property
    def parents(self) -> Mapping[cst.CSTNode, cst.CSTNode]:
        """The parent of every node but the module."""
        return parents_of(self.module)

    @cached_property
    def _by_type(self) -> Mapping[type, list[cst.CSTNode]]:
        nodes: dict[type, list[cst.CSTNode]] = {}
        for node in walk(self.module):
            nodes.setdefault(type(node), []).append(node)
        return nodes

    def nodes_of(self, kind: type[NodeT], pattern: m.BaseMatcherNode | None = None) -> Iterator[NodeT]:
        """Yield all nodes of exactly this type that match, outer ones first; the fragment is walked once for all."""
        for node in self._by_type.get(kind, ()):
            if isinstance(node, kind) and (pattern is None or m.matches(node, pattern)):
                yield node

    def line_of(self, node: cst.CSTNode) -> int:
        """Return the line of the file on which `node` begins."""
        return self.positions[node].start.line + self.line_offset

    def last_line_of(self, node: cst.CSTNode) -> int:
        """Return the line of the file on which `node` ends."""
        return self.positions[node].end.line + self.line_offset

    def order_of(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return a key that sorts nodes as they stand in the source."""
        start = self.positions[node].start
        return start.line, start.column

    def parent_of(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the parent; the module is its own."""
        return self.parents.get(node, node)

    def ancestors_of(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the ancestors, innermost first, the module last."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def function_of(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """Return the innermost function around `node` (the function itself for its own name)."""
        functions = (item for item in self.ancestors_of(node) if isinstance(item, cst.FunctionDef))
        return next(functions, None)

    def scope_of(self, node: cst.CSTNode) -> str:
        """Return the qualified name of the innermost function or class around `node`."""
        names = [
            item.name.value for item in self.ancestors_of(node) if isinstance(item, cst.FunctionDef | cst.ClassDef)
        ]
        return ".".join(reversed(names)) or MODULE_SCOPE


@dataclass(frozen=True, eq=False)
class SourceFile:
    """One file: its outline, and its units parsed when asked for."""

    path: PurePosixPath
    outline: Outline
    _fragments: dict[Unit, Fragment] = field(default_factory=dict)

    @classmethod
    def read(cls, path: PurePosixPath, data: bytes) -> "SourceFile":
        """Decode and outline one file.

        Raises:
            SourceError: it is not Python.
        """
        return cls(path, outline_source(path, decode_source(path, data)))

    @cached_property
    def text(self) -> str:
        """The whole source."""
        return "\n".join(self.outline.lines)

    def code_at(self, line: int) -> str:
        """Return one source line without its indentation."""
        return self.outline.lines[line - 1].strip()

    def text_of(self, unit: Unit) -> str:
        """Return the lines of one unit."""
        return "\n".join(self.outline.lines[unit.first_line - 1 : unit.last_line])

    def fragment(self, unit: Unit) -> Fragment:
        """Parse one unit, once."""
        found = self._fragments.get(unit)
        if found is None:
            found = self._fragments[unit] = _parse_unit(self, unit)
        return found

    def fragment_of(self, node: cst.CSTNode) -> Fragment:
        """Return the parsed unit that a node is of."""
        return next(fragment for fragment in self._fragments.values() if node in fragment.positions)

    def fragments_with(self, text: str, class_name: str | None = None) -> Iterator[Fragment]:
        """Yield the parsed units (of one class) whose lines hold `text`."""
        for unit in self.outline.units:
            if (class_name is None or class_name in unit.classes) and text in self.text_of(unit):
                yield self.fragment(unit)


def _parse_unit(source: SourceFile, unit: Unit) -> Fragment:
    # Empty class headers stand in for the classes around the unit, each indented by one sign more of what indents it.
    unit_text = source.text_of(unit)
    indentation = unit_text[: len(unit_text) - len(unit_text.lstrip(" \t"))]
    header = "".join(f"{indentation[:depth]}class {name}:\n" for depth, name in enumerate(unit.classes))
    text = header + unit_text + "\n"
    if unit.is_class_header:
        text += f"{indentation}{' ' * 200}pass\n"
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        line = unit.first_line + error.raw_line - 1 - len(unit.classes)
        # Its text counts the fragment's lines.
        reason = _FRAGMENT_PLACE.sub("", error.message.partition("\n")[0])
        raise _unparsed(source.path, line, reason) from error
    except RecursionError as error:
        raise _unparsed(source.path, unit.first_line, "it is nested too deeply") from error
    return Fragment(unit, module, line_offset=unit.first_line - 1 - len(unit.classes))


def _unparsed(path: PurePosixPath, line: int, reason: str) -> SourceError:
    return SourceError(f"cannot parse {path}:{line}: {reason}", hint="is it valid Python?")
