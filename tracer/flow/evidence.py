"""Lines that support a statement, made from the nodes that were matched."""

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.report.entries import CaptureSite, FileTrace, StageBranch
from auxtap.tracer.report.trace_report import Evidence
from auxtap.tracer.source.fragments import Fragment, SourceFile
from auxtap.tracer.source.walk import NodeT


def evidence_of(trace: FileTrace, entry: CaptureSite | StageBranch) -> Evidence:
    """Return the line of a site or a branch."""
    return Evidence(trace.file, entry.line, entry.scope, entry.code)


def evidence_at(source: SourceFile, fragment: Fragment, node: cst.CSTNode) -> Evidence:
    """Return the line on which a node begins."""
    line = fragment.line_of(node)
    return Evidence(source.path, line, fragment.scope_of(node), source.code_at(line))


def find_in(
    source: SourceFile, text: str, kind: type[NodeT], pattern: m.BaseMatcherNode | None = None
) -> Iterator[tuple[Fragment, NodeT]]:
    """Yield the nodes of one type that match, in the units whose lines hold `text`."""
    for fragment in source.fragments_with(text):
        for node in fragment.nodes_of(kind, pattern):
            yield fragment, node


def module_constant(source: SourceFile, name: str) -> tuple[Evidence, cst.BaseExpression] | None:
    """Return the line and the value of `NAME = ...` at module level."""
    pattern = m.Assign(targets=[m.AssignTarget(target=m.Name(name))])
    for unit in source.outline.units:
        if unit.name is None and not unit.classes and name in source.text_of(unit):
            fragment = source.fragment(unit)
            for assign in fragment.nodes_of(cst.Assign, pattern):
                return evidence_at(source, fragment, assign), assign.value
    return None
