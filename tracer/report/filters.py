"""Narrow a report down to what a person asked to see."""

from collections.abc import Collection
from dataclasses import replace

from auxtap.tracer.report.entries import FileTrace
from auxtap.tracer.report.trace_report import TraceReport


def only_roles(report: TraceReport, roles: Collection[str]) -> TraceReport:
    """Return the report with the sites and branches of these roles only; what it says besides stays away."""
    files = tuple(trace for trace in (_with_roles(trace, roles) for trace in report.files) if _holds_anything(trace))
    return replace(report, files=files, flows=(), layer_rules=(), facts=(), hazards=(), delivery=())


def only_hazards(report: TraceReport) -> TraceReport:
    """Return the report with the hazards only."""
    return replace(report, files=(), flows=(), layer_rules=(), facts=(), delivery=())


def _with_roles(trace: FileTrace, roles: Collection[str]) -> FileTrace:
    return replace(
        trace,
        capture_sites=tuple(site for site in trace.capture_sites if site.role in roles),
        stage_branches=tuple(branch for branch in trace.stage_branches if branch.role in roles),
    )


def _holds_anything(trace: FileTrace) -> bool:
    return bool(trace.capture_sites or trace.stage_branches)
