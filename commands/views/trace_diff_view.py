"""Show what changed between the traces of two trees."""

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from auxtap.commands.views.trace_view import hazard_words, print_parts
from auxtap.core.source_tree import SRT_ROOT
from auxtap.tracer.report.compare import Change, Comparison, Place
from auxtap.tracer.report.trace_report import LayerRule

_KINDS = {
    "role": "Changed in role",
    "changed": "Changed in what they do",
    "new": "New",
    "gone": "Gone",
    "moved": "Moved to another function or file",
}


def show_comparison(comparison: Comparison) -> None:
    """Print the differences to stdout, what decides captured values first."""
    print_parts(comparison_parts(comparison))


_PLURALS = {
    "new break of the way": "new breaks of the way",
    "break gone": "breaks gone",
    "hazard gone": "hazards gone",
}


def comparison_parts(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield a comparison in parts."""
    counts = Counter(change.kind for change in comparison.changes)
    words = ", ".join(f"{counts[kind]} {kind}" for kind in _KINDS if counts[kind])
    yield Text.assemble(
        (f"SGLang {comparison.new.release} against {comparison.old.release}", "bold"),
        f": {comparison.n_same} sites and branches the same, {words or 'nothing changed'}",
    )
    yield _verdict(comparison)
    for kind, title in _KINDS.items():
        for matters in (True, False):
            changes = [item for item in comparison.changes if item.kind == kind and item.matters is matters]
            if changes:
                yield Text("")
                yield Text(title if matters else f"{title} (does not bear on captured values)", style="bold")
                yield Padding(_change_table(changes), (0, 0, 0, 2))
    yield from _rule_parts(comparison)
    for title, reasons in (
        ("Ways that are broken now", comparison.breaks_new),
        ("Ways that are whole now", comparison.breaks_gone),
    ):
        if reasons:
            yield Text("")
            yield Text(title, style="bold")
            yield Group(*(Padding(Text(f"- {reason}"), (0, 0, 0, 2)) for reason in reasons))
    for title, hazards in (("Hazards that are new", comparison.hazards_new), ("gone", comparison.hazards_gone)):
        if hazards:
            yield Text("")
            yield Text(title if title[0] == "H" else f"Hazards that are {title}", style="bold")
            yield Group(*(Padding(Text(f"- {hazard_words(hazard)}"), (0, 0, 0, 2)) for hazard in hazards))


def _verdict(comparison: Comparison) -> Text:
    if not comparison.matters:
        return Text("The change does not bear on captured values.", style="green")
    reasons = []
    decisive = sum(change.matters for change in comparison.changes)
    for number, noun in (
        (decisive, "decisive change"),
        (len(comparison.rules_changed), "changed layer rule"),
        (len(comparison.breaks_new), "new break of the way"),
        (len(comparison.breaks_gone), "break gone"),
        (len(comparison.hazards_new), "new hazard"),
        (len(comparison.hazards_gone), "hazard gone"),
    ):
        if number:
            plural = _PLURALS.get(noun, f"{noun}s")
            reasons.append(f"{number} {noun if number == 1 else plural}")
    return Text(f"The change matters: {', '.join(reasons)}.", style="yellow")


def _change_table(changes: Iterable[Change]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(overflow="fold")
    for change in changes:
        table.add_row(Text(_where(change.place), style="cyan"), Text(_roles(change), style="green"), _code(change))
    return table


def _where(place: Place) -> str:
    path = place.file.relative_to(SRT_ROOT) if place.file.is_relative_to(SRT_ROOT) else place.file
    return f"{path}:{place.entry.line} {place.entry.scope}"


def _roles(change: Change) -> str:
    if change.old is not None and change.new is not None and change.old.entry.role != change.new.entry.role:
        return f"{change.old.entry.role} -> {change.new.entry.role}"
    return change.place.entry.role


def _code(change: Change) -> Text:
    text = Text(change.place.entry.code)
    if change.kind == "moved" and change.old is not None:
        text.append(f"\nfrom {_where(change.old)}", style="dim")
    elif change.kind == "changed" and change.old is not None:
        text.append(f"\nwas: {change.old.entry.code}", style="dim")
    return text


def _rule_parts(comparison: Comparison) -> Iterator[RenderableType]:
    if comparison.rules_changed:
        yield Text("")
        yield Text("Layer rules", style="bold")
        for old, new in comparison.rules_changed:
            rule = new or old
            assert rule is not None
            yield Padding(Text(f"- {rule.scope}: {_rule(old)} -> {_rule(new)}"), (0, 0, 0, 2))


def _rule(rule: LayerRule | None) -> str:
    if rule is None:
        return "no setter"
    offsets = [
        f"+{item.offset}" + (f" ({item.condition})" if item.condition is not None else "") for item in rule.offsets
    ]
    shift = f", shift {rule.shift}" if rule.shift else ""
    default = f", default {rule.default}" if rule.default is not None else ""
    return f"{' or '.join(offsets) or 'ids not understood'}{shift}{default}"
