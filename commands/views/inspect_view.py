"""Show what an inspection of a store has seen, and draw it."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table

from auxtap.commands.views import console
from auxtap.commands.views.plots import Bar, Spread, draw_bars, draw_spreads
from auxtap.core.errors import ExtractionError
from auxtap.core.files import publish_bytes
from auxtap.extraction.audit.inspection import StateNorms, StoreInspection

_BAR_WIDTH = 40


def show_inspection(found: StoreInspection, store: Path, *, as_json: bool) -> None:
    """Show an inspection."""
    if as_json:
        console.emit_json({"store": str(store), **asdict(found)})
        return
    out = console.out()
    out.print(f"store {escape(str(store))}", style="bold", soft_wrap=True)
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for label, value in _rows(found):
        table.add_row(label, value)
    out.print(table)
    out.print(_norms(found))
    _show_bars("tokens a sample", [(f"{b.low:>8,} to {b.high:>8,}", b.n_samples) for b in found.lengths])
    tenths = [(f"{10 * i:>3} to {10 * (i + 1):>3} %", count) for i, count in enumerate(found.trained_tenths)]
    _show_bars("trained tokens a sample", tenths)
    for group in found.duplicates:
        ids = ", ".join(group[:5]) + (f" and {len(group) - 5:,} more" if len(group) > 5 else "")
        out.print(f"[yellow]same tokens:[/] {escape(ids)}", soft_wrap=True)
    for outlier in found.outliers:
        out.print(
            f"[yellow]outlier:[/] {escape(outlier.sample_id)}: the mean norm of {outlier.state} is "
            f"{outlier.mean_norm:.4g}, usually {outlier.usual:.4g} ({outlier.deviations:.0f} deviations)",
            soft_wrap=True,
        )
    for slow in found.slowest:
        tries = f", {slow.attempts} tries" if slow.attempts > 1 else ""
        out.print(f"slow: {escape(slow.sample_id)}: {slow.seconds:.3f} s for {slow.n_tokens:,} tokens{tries}")


def _rows(found: StoreInspection) -> Iterator[tuple[str, str]]:
    yield "stored", f"{found.stored:,} of {found.n_expected:,} samples"
    for label, count in (("skipped", found.skipped), ("failed", found.failed), *found.splits.items()):
        if count:
            yield label, f"{count:,}"
    if found.inspected < found.stored:
        yield "looked at", f"{found.inspected:,} samples"
    yield "tokens", f"{found.n_tokens:,} ({found.shortest:,} to {found.longest:,}, median {found.median:,})"
    share = 100 * found.trained_tokens / max(1, found.inspected_tokens)
    yield "trained on", f"{found.trained_tokens:,} of {found.inspected_tokens:,} tokens ({share:.1f} %)"
    yield "nothing trained on", f"{found.untrained:,} samples"
    yield "same tokens as another", f"{found.repeated:,} samples"
    yield "sent more than once", f"{found.more_than_once:,} samples"


def _norms(found: StoreInspection) -> Table:
    table = Table(box=box.SIMPLE, title="norms by state; the first token of each sample apart", title_justify="left")
    table.add_column("state")
    for name in ("mean", "1 %", "median", "99 %", "largest", "first"):
        table.add_column(name, justify="right")
    table.add_column("largest in")
    for state in found.states:
        norms = state.norms
        values = (norms.mean, norms.low, norms.median, norms.high, norms.largest, state.first_tokens.mean)
        where = f"{state.largest_in}, token {state.largest_at}" if state.largest_in else ""
        if norms.not_finite or state.first_tokens.not_finite:
            where += f" ({norms.not_finite + state.first_tokens.not_finite:,} rows not finite)"
        table.add_row(state.state, *("" if value is None else f"{value:.4g}" for value in values), escape(where))
    return table


def _show_bars(title: str, counts: list[tuple[str, int]]) -> None:
    most = max((count for _, count in counts), default=1) or 1
    console.out().print(title, style="bold")
    for label, count in counts:
        console.out().print(f"  {label}  {count:>9,}  {'#' * round(_BAR_WIDTH * count / most)}".rstrip())


def draw_inspection(found: StoreInspection, folder: Path) -> tuple[Path, ...]:
    """Write the plots into `folder` and return their paths.

    Raises:
        ExtractionError: they cannot be written.
    """
    tenths = [Bar(f"{10 * i} to {10 * (i + 1)} %", count) for i, count in enumerate(found.trained_tenths)]
    plots = {
        "lengths.svg": draw_bars("Tokens a sample", [Bar(f"{b.low:,}", b.n_samples) for b in found.lengths], "samples"),
        "trained.svg": draw_bars("Trained tokens of a sample", tenths, "samples"),
        "norms.svg": draw_spreads("Norms by state, 1 % to 99 % of the tokens", list(_spreads(found.states)), "norm"),
    }
    try:
        for name, text in plots.items():
            publish_bytes(folder / name, text.encode())
    except OSError as error:
        raise ExtractionError(f"cannot write plots into {folder}: {error.strerror}") from None
    return tuple(folder / name for name in plots)


def _spreads(states: tuple[StateNorms, ...]) -> Iterator[Spread]:
    for state in states:
        norms = state.norms
        if norms.low is not None and norms.median is not None and norms.high is not None:
            yield Spread(state.state, norms.low, norms.median, norms.high)
