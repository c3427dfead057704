"""Show how far a store is, and what a merge or a drain came to."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table

from auxtap.commands.views import console
from auxtap.commands.views.extract_view import human_bytes, human_seconds
from auxtap.extraction.run.reporting import RUNNING
from auxtap.extraction.run.status import ELSEWHERE, StoreStatus
from auxtap.extraction.spool.relay import RelayCount
from auxtap.extraction.store.merge import MergeSummary


def show_status(status: StoreStatus, store: Path, *, as_json: bool) -> None:
    """Show how far a store is."""
    if as_json:
        console.emit_json({"store": str(store), **asdict(status)})
        return
    table = Table(box=box.SIMPLE, show_header=False, title=escape(f"store {store}"), title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right", overflow="fold")
    for label, value in _rows(status):
        table.add_row(label, escape(value))
    console.out().print(table)


def _rows(status: StoreStatus) -> Iterator[tuple[str, str]]:
    state = status.state if status.state == RUNNING or not status.outcome else f"{status.state}: {status.outcome}"
    yield "session", state
    if status.shard:
        yield "shard", status.shard
    yield "stored", f"{status.stored:,} of {status.n_expected:,} samples"
    yield "skipped", f"{status.skipped:,}"
    yield "failed", f"{status.failed:,}"
    yield "tokens", f"{status.tokens_stored:,}"
    yield "bytes", human_bytes(status.n_bytes)
    yield "sessions", f"{status.sessions}"
    if status.state in (RUNNING, ELSEWHERE):
        yield "process", f"{status.pid} on {status.host}"
        yield "tokens/s", f"{status.tokens_per_s:,.0f}"
        yield "in flight", f"{status.in_flight}"
        yield "spool", f"{human_bytes(status.spool_bytes)} of {human_bytes(status.spool_limit)}"
        yield "servers", f"{status.servers_up} of {status.servers}"
    if status.eta_s is not None:
        yield "ETA", human_seconds(status.eta_s)
    if status.age_s is not None:
        yield "last word", f"{human_seconds(status.age_s)} ago"
    if status.last_error:
        yield "last error", status.last_error


def show_merge(summary: MergeSummary, store: Path, *, as_json: bool) -> None:
    """Show what a merge came to."""
    if as_json:
        console.emit_json({"store": str(store), **asdict(summary)})
        return
    console.out().print(
        f"store {escape(str(store))}: {summary.stored:,} samples of {summary.n_shards} shards, "
        f"{human_bytes(summary.n_bytes)}; {summary.skipped:,} skipped, {summary.failed:,} failed, "
        f"{summary.missing:,} in no shard; {summary.copied:,} files copied, the others linked",
        soft_wrap=True,
    )


def show_relay(count: RelayCount, target: Path, *, as_json: bool) -> None:
    """Show what a drain has carried."""
    if as_json:
        console.emit_json({"target": str(target), **asdict(count)})
        return
    console.out().print(
        f"{count.parts:,} parts ({human_bytes(count.n_bytes)}) and {count.records:,} failure records carried to "
        f"{escape(str(target))}; {count.refused:,} damaged parts dropped, {count.retries:,} retries",
        soft_wrap=True,
    )
