"""Find every occurrence of a capture or stage name in one file, and count mere mentions apart."""

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.report.entries import Mentions
from auxtap.tracer.source.bodies import assign_targets
from auxtap.tracer.source.fragments import Fragment, SourceFile
from auxtap.tracer.source.names import STAGE_NAMES, Kind, count_names, holds_name, holds_word, kind_of

_ATTRIBUTE_ACCESS = m.Call(func=m.Name("getattr") | m.Name("setattr") | m.Name("hasattr"))


@dataclass(frozen=True, eq=False)
class Occurrence:
    """One name where it does something.

    `node` is the name itself, or the string of a `getattr`, `setattr` or `hasattr`; `reference` is the whole
    expression that it ends (`self.model.layers_to_capture`, `getattr(model, "layers_to_capture")`), `parent` what
    that expression stands in. `kind` says what the name stands for; None for a stage name.
    """

    source: SourceFile
    fragment: Fragment
    node: cst.Name | cst.SimpleString
    name: str
    kind: Kind | None
    reference: cst.CSTNode
    parent: cst.CSTNode

    @property
    def is_string(self) -> bool:
        """Whether the name is the string of an attribute access rather than a NAME token."""
        return isinstance(self.node, cst.SimpleString)

    @property
    def line(self) -> int:
        """The line on which the name stands."""
        return self.fragment.line_of(self.node)

    @property
    def scope(self) -> str:
        """The qualified name of the enclosing function or class."""
        return self.fragment.scope_of(self.node)

    @property
    def function(self) -> cst.FunctionDef | None:
        """The innermost enclosing function."""
        return self.fragment.function_of(self.node)

    def ancestors(self) -> Iterator[cst.CSTNode]:
        """Yield what is around the reference, innermost first."""
        return self.fragment.ancestors_of(self.reference)


@dataclass(frozen=True)
class Gathered:
    """What one file holds."""

    occurrences: tuple[Occurrence, ...]
    mentions: Mentions


def gather_occurrences(source: SourceFile) -> Gathered:
    """Parse the units of `source` that hold a name and list what is in them, in source order."""
    n_all = count_names(source.text)
    if not n_all:
        return Gathered((), Mentions())
    occurrences: list[Occurrence] = []
    imports = strings = 0
    settings = _assigned_in_setters(source)
    for unit in source.outline.units:
        text = source.text_of(unit)
        if not holds_name(text) and not any(holds_word(text, word) for word in settings):
            continue
        fragment = source.fragment(unit)
        for node in fragment.nodes_of(cst.Name):
            kind = kind_of(node.value)
            if kind is None and node.value in settings and _is_attribute(fragment, node):
                kind = Kind.SETTING
            if (kind is None and node.value not in STAGE_NAMES) or _is_stand_in(fragment, node):
                continue
            if _is_in_import(fragment, node):
                imports += 1
            else:
                occurrences.append(_occurrence(source, fragment, node, node.value, kind))
        for string in fragment.nodes_of(cst.SimpleString):
            value = str(string.raw_value)
            kind = kind_of(value) or (Kind.SETTING if value in settings else None)
            if kind is not None and _is_attribute_name(fragment, string):
                occurrences.append(_occurrence(source, fragment, string, value, kind))
            strings += count_names(string.value)
        strings += sum(count_names(text.value) for text in fragment.nodes_of(cst.FormattedStringText))
    occurrences.sort(key=lambda item: (item.line, item.fragment.order_of(item.node)))
    # What is no name and no string can only be a comment.
    n_names = sum(not item.is_string and item.kind is not Kind.SETTING for item in occurrences)
    comments = n_all - n_names - imports - strings
    return Gathered(tuple(occurrences), Mentions(imports, strings, comments))


def _assigned_in_setters(source: SourceFile) -> frozenset[str]:
    """Return the attributes outside the family that a setter of this file assigns."""
    names: set[str] = set()
    for unit in source.outline.units:
        if unit.name is None or kind_of(unit.name) is not Kind.SETTER:
            continue
        targets = assign_targets([source.fragment(unit).module])
        attributes = (target.attr.value for target in targets if isinstance(target, cst.Attribute))
        names.update(name for name in attributes if kind_of(name) is None)
    return frozenset(names)


def _occurrence(
    source: SourceFile, fragment: Fragment, node: cst.Name | cst.SimpleString, name: str, kind: Kind | None
) -> Occurrence:
    reference: cst.CSTNode = node
    parent = fragment.parent_of(node)
    if isinstance(parent, cst.Attribute) and parent.attr is node:
        reference, parent = parent, fragment.parent_of(parent)
    elif isinstance(node, cst.SimpleString):
        call = fragment.parent_of(parent)
        if m.matches(call, m.Call(func=m.Name("getattr"))):
            reference, parent = call, fragment.parent_of(call)
    return Occurrence(source, fragment, node, name, kind, reference, parent)


def _is_stand_in(fragment: Fragment, node: cst.Name) -> bool:
    """Tell whether the name is that of an enclosing class, whose header was put before the unit to parse it."""
    parent = fragment.parent_of(node)
    named = isinstance(parent, cst.ClassDef) and parent.name is node
    return named and fragment.line_of(node) < fragment.unit.first_line


def _is_attribute(fragment: Fragment, node: cst.Name) -> bool:
    parent = fragment.parent_of(node)
    return isinstance(parent, cst.Attribute) and parent.attr is node


def _is_in_import(fragment: Fragment, node: cst.CSTNode) -> bool:
    return any(isinstance(item, cst.Import | cst.ImportFrom) for item in fragment.ancestors_of(node))


def _is_attribute_name(fragment: Fragment, node: cst.SimpleString) -> bool:
    argument = fragment.parent_of(node)
    call = fragment.parent_of(argument)
    if not isinstance(call, cst.Call) or not m.matches(call, _ATTRIBUTE_ACCESS):
        return False
    return len(call.args) >= 2 and call.args[1] is argument
