"""Show an extraction while it runs and when it has ended, and what a check of a store has found."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from rich import box
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from auxtap.commands.views import console
from auxtap.extraction.audit.integrity import CheckProgress, StoreReport
from auxtap.extraction.run.job import ExtractionProgress, ExtractionSummary, Observer

# Without a terminal, one line of progress at most in this many seconds.
PLAIN_INTERVAL_S = 5.0
# Of the samples that were not stored, so many are named on a terminal; --json names all.
NAMED_FATES = 20


def human_bytes(n_bytes: float) -> str:
    """Return a size as people read it, in powers of 1024."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units[:-1]:
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} {units[-1]}"


def human_seconds(seconds: float) -> str:
    """Return a duration as people read it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def describe_progress(progress: ExtractionProgress) -> str:
    """Return counts, rate, bytes and remaining time in one line."""
    done = progress.already_stored + progress.stored
    text = f"{done:,}/{progress.n_samples:,} samples"
    for count, word in ((progress.skipped, "skipped"), (progress.failed, "failed")):
        if count:
            text += f", {count:,} {word}"
    rate = progress.tokens_stored / progress.elapsed_s if progress.elapsed_s > 0 else 0.0
    bytes_per_s = progress.bytes_stored / progress.elapsed_s if progress.elapsed_s > 0 else 0.0
    text += f"  {rate:,.0f} tokens/s  {bytes_per_s / 1e9:.2f} GB/s  {progress.in_flight} in flight"
    if progress.spool_limit:
        text += f"  spool {100 * progress.spool_bytes / progress.spool_limit:.0f} %"
    if progress.servers > 1:
        text += f"  {progress.servers_up}/{progress.servers} servers"
    left = progress.n_tokens - progress.tokens_done
    if rate > 0 and left > 0:
        text += f"  ETA {human_seconds(left / rate)}"
    if progress.last_error:
        text += f"  last error: {progress.last_error[:80]}"
    return text


@contextlib.contextmanager
def extraction_progress() -> Iterator[Observer]:
    """Show a bar on a terminal, a line now and then elsewhere; messages stay above the bar."""
    if not console.err().is_terminal:
        yield _PlainProgress()
        return
    with _bar() as bar:
        task = bar.add_task("extract", total=None, detail="")

        def observe(progress: ExtractionProgress) -> None:
            if progress.message is not None:
                bar.console.print(escape(progress.message), style="yellow", soft_wrap=True)
            bar.update(
                task,
                total=progress.n_tokens,
                completed=progress.tokens_done,
                detail=escape(describe_progress(progress)),
            )

        yield observe


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[detail]}"), console=console.err()
    )


class _PlainProgress:
    """Progress for a log: messages at once, counts from time to time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_at = clock()

    def __call__(self, progress: ExtractionProgress) -> None:
        """Report what is due."""
        if progress.message is not None:
            console.say(progress.message)
        elif self._clock() - self._last_at >= PLAIN_INTERVAL_S:
            self._last_at = self._clock()
            console.say(describe_progress(progress))


def summary_record(summary: ExtractionSummary, store: str) -> dict[str, Any]:
    """Return what `auxtap extract --json` prints."""
    record = asdict(summary)
    record["not_stored"] = [
        {"index": fate.index, "id": fate.sample_id, "fate": fate.fate, "reason": fate.reason}
        for fate in summary.not_stored
    ]
    return {"store": store, **record, "tokens_per_s": summary.tokens_per_s, "complete": summary.complete}


def show_summary(summary: ExtractionSummary, store: str, *, as_json: bool) -> None:
    """Show how an extraction ended."""
    if as_json:
        console.emit_json(summary_record(summary, store))
        return
    out = console.out()
    table = Table(box=box.SIMPLE, show_header=False, title=escape(f"store {store}"), title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right", overflow="fold")
    for label, value in _summary_rows(summary):
        table.add_row(label, value)
    out.print(table)
    for fate in summary.not_stored[:NAMED_FATES]:
        out.print(escape(f"{fate.fate}: {fate.sample_id}: {fate.reason}"), soft_wrap=True)
    if len(summary.not_stored) > NAMED_FATES:
        out.print(f"and {len(summary.not_stored) - NAMED_FATES:,} more; ledger.jsonl has them all")
    if summary.stopped:
        out.print(escape(f"stopped: {summary.stopped}"), soft_wrap=True)
    if summary.interrupted:
        out.print("interrupted; the same command continues")


def _summary_rows(summary: ExtractionSummary) -> Iterator[tuple[str, str]]:
    yield "samples", f"{summary.n_samples:,}"
    yield "stored now", f"{summary.stored:,}"
    yield "stored before", f"{summary.already_stored:,}"
    yield "skipped", f"{summary.skipped:,}"
    yield "failed", f"{summary.failed:,}"
    yield "tokens", f"{summary.tokens:,}"
    yield "bytes", human_bytes(summary.n_bytes)
    yield "time", human_seconds(summary.seconds)
    yield "tokens/s", f"{summary.tokens_per_s:,.0f}"
    yield "peak spool", human_bytes(summary.peak_spool_bytes)
    yield "unattributed batches", f"{summary.unattributed:,}"
    if summary.tap_errors:
        yield "errors of the tap", f"{summary.tap_errors:,} (last: {escape(summary.tap_last_error)})"


@contextlib.contextmanager
def check_progress(what: str = "check") -> Iterator[Callable[[CheckProgress], None]]:
    """Show how far a pass over a store is, on a terminal only."""
    if not console.err().is_terminal:
        yield lambda progress: None
        return
    with _bar() as bar:
        task = bar.add_task(what, total=None, detail="")
        yield lambda progress: bar.update(
            task,
            total=progress.n_stored,
            completed=progress.n_checked,
            detail=f"{progress.n_checked:,}/{progress.n_stored:,} samples  {human_bytes(progress.bytes_checked)}",
        )


def report_record(report: StoreReport, store: str) -> dict[str, Any]:
    """Return what `auxtap check --json` prints."""
    record = asdict(report)
    record["findings"] = [{"file": str(finding.file), "what": finding.what} for finding in report.findings]
    return {"store": store, **record, "missing": report.missing, "sound": not report.findings}


def show_report(report: StoreReport, store: str, *, as_json: bool) -> None:
    """Show what a check has found."""
    if as_json:
        console.emit_json(report_record(report, store))
        return
    out = console.out()
    for finding in report.findings:
        out.print(f"[red]{escape(str(finding.file))}[/]: {escape(finding.what)}", soft_wrap=True)
    out.print(
        f"{report.stored:,} samples in {report.n_parts:,} files, {report.n_tokens:,} tokens, "
        f"{human_bytes(report.n_bytes)} verified; {report.skipped:,} skipped, {report.failed:,} failed, "
        f"{report.missing:,} not extracted yet",
        soft_wrap=True,
    )
    if report.quarantined:
        out.print(f"{report.quarantined:,} bad samples in {escape(f'{store}/quarantine')}", soft_wrap=True)
    if not report.findings:
        out.print(f"[green]store {escape(store)} is sound[/]", soft_wrap=True)
