"""Show what an extraction will take."""

from collections.abc import Iterator
from dataclasses import asdict

from rich import box
from rich.markup import escape
from rich.table import Table

from auxtap.commands.views import console
from auxtap.commands.views.extract_view import human_bytes, human_seconds
from auxtap.extraction.run.dry_run import ExtractionPlan

_BAR_WIDTH = 40


def rounded_bytes(n_bytes: int) -> str:
    """Return a size in three digits or so, beside the exact one."""
    text = human_bytes(n_bytes)
    number, _, unit = text.partition(" ")
    return f"{float(number):.0f} {unit} ({n_bytes:,} bytes)" if float(number) >= 100 else f"{text} ({n_bytes:,} bytes)"


def show_plan(plan: ExtractionPlan, *, as_json: bool) -> None:
    """Show a plan."""
    if as_json:
        console.emit_json(asdict(plan))
        return
    out = console.out()
    table = Table(box=box.SIMPLE, show_header=False, title="plan", title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right", overflow="fold")
    for label, value in _rows(plan):
        table.add_row(label, escape(value))
    out.print(table)
    most = max((item.n_samples for item in plan.histogram), default=1)
    out.print("tokens a sample", style="bold")
    for item in plan.histogram:
        bar = "#" * max(1, round(_BAR_WIDTH * item.n_samples / most))
        out.print(f"  {item.low:>8,} to {item.high:>8,}  {item.n_samples:>9,}  {bar}")
    for text in plan.first_bad:
        out.print(f"[red]bad[/] {escape(text)}", soft_wrap=True)
    if plan.obstacle is not None:
        out.print(f"[red]it cannot be begun:[/] {escape(plan.obstacle)}", soft_wrap=True)


def _rows(plan: ExtractionPlan) -> Iterator[tuple[str, str]]:
    yield "samples", f"{plan.n_samples:,}"
    yield "tokens", f"{plan.n_tokens:,} ({plan.shortest:,} to {plan.longest:,}, median {plan.median:,})"
    yield "bytes a token", f"{plan.bytes_per_token:,}"
    yield "states in all", rounded_bytes(plan.state_bytes)
    yield "bytes a sample", f"{human_bytes(plan.mean_sample_bytes)}, at most {human_bytes(plan.largest_sample_bytes)}"
    yield "store", rounded_bytes(plan.store_bytes)
    if plan.already_stored:
        yield "stored already", f"{plan.already_stored:,} samples; {rounded_bytes(plan.needed_bytes)} to come"
    yield "peak spool", rounded_bytes(plan.peak_spool_bytes)
    for label, free in (("free in the spool", plan.spool_free), ("free in the store", plan.store_free)):
        if free is not None:
            yield label, rounded_bytes(free)
    if plan.too_long:
        yield f"too long (over {plan.longest_allowed:,})", f"{plan.too_long:,} samples"
    yield "empty, twice or malformed", f"{plan.bad_lines:,} records"
    yield "same tokens as another", f"{plan.repeated:,} samples"
    for label, count in (("left out: seen before", plan.duplicates), ("left out: too long", plan.left_out_too_long)):
        if count:
            yield label, f"{count:,} records"
    for label, count in (("cut", plan.cut), ("held out", plan.held_out)):
        if count:
            yield label, f"{count:,} samples"
    if plan.tokens_per_s is not None and plan.estimated_s is not None:
        yield "time", f"{human_seconds(plan.estimated_s)} at {plan.tokens_per_s:,.0f} tokens/s"
