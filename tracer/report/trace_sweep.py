"""The table of all releases: what a trace of everything finds in each, written and read back."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from auxtap.tracer.report.trace_report import TraceReport

_TITLE = """# What the trace finds in every release

`auxtap trace pypi:VERSION --all` for every release of the lock table: files with a name of the pipeline, capture
sites, stage branches, how many of them no rule recognises, hazards, and seconds for one process without kept traces
(on two shared cores; only their ratio means anything). `python examples/benchmarks/trace_sweep.py` writes this file.

"""
_HEAD = ("release", "files", "sites", "branches", "unknown", "hazards", "seconds")


@dataclass(frozen=True)
class SweepRow:
    """The figures of one release."""

    release: str
    n_files: int
    n_sites: int
    n_branches: int
    n_unknown: int
    n_hazards: int
    seconds: float

    def without_time(self) -> "SweepRow":
        """Return what a second run finds again."""
        return replace(self, seconds=0.0)


def row_of(report: TraceReport, seconds: float) -> SweepRow:
    """Return the figures of a trace of everything."""
    return SweepRow(
        release=report.release,
        n_files=len(report.files),
        n_sites=sum(len(trace.capture_sites) for trace in report.files),
        n_branches=sum(len(trace.stage_branches) for trace in report.files),
        n_unknown=report.n_unknown,
        n_hazards=len(report.hazards),
        seconds=seconds,
    )


def write_table(rows: Iterable[SweepRow]) -> str:
    """Return the document."""
    lines = [f"| {' | '.join(_HEAD)} |", f"|{' --- |' * len(_HEAD)}"]
    for row in rows:
        counts = (row.n_files, row.n_sites, row.n_branches, row.n_unknown, row.n_hazards)
        lines.append(f"| {row.release} | {' | '.join(map(str, counts))} | {row.seconds:.1f} |")
    return _TITLE + "\n".join(lines) + "\n"


def table_rows(text: str) -> tuple[SweepRow, ...]:
    """Read the document back."""
    return tuple(_rows(text))


def _rows(text: str) -> Iterator[SweepRow]:
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(_HEAD) and cells[1].isdigit():
            release, *counts = cells[:-1]
            n_files, n_sites, n_branches, n_unknown, n_hazards = map(int, counts)
            yield SweepRow(release, n_files, n_sites, n_branches, n_unknown, n_hazards, float(cells[-1]))
