"""The places of a file at which states are kept, for those who look at what is around them."""

from collections.abc import Iterator

import libcst as cst

from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.report.entries import CaptureSite, FileTrace
from auxtap.tracer.source.fragments import Fragment
from auxtap.tracer.source.walk import find


def sites_of(trace: FileTrace, *roles: str) -> list[CaptureSite]:
    """Return the sites of these roles."""
    return [site for site in trace.capture_sites if site.role in roles]


def capturing_functions(index: ClassIndex, trace: FileTrace) -> Iterator[tuple[Fragment, cst.FunctionDef]]:
    """Yield the functions that fill a list of states of their own."""
    source = index.source(trace.file)
    lines = {site.line for site in sites_of(trace, "accumulator_init")}
    for unit in source.outline.units:
        if any(unit.first_line <= line <= unit.last_line for line in lines):
            fragment = source.fragment(unit)
            for function in find(fragment.module, cst.FunctionDef):
                yield fragment, function
