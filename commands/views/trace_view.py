"""Show a trace: a tree along the flow, then the facts and hazards."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from auxtap.commands.views.console import out
from auxtap.commands.views.entry_rows import EntryRow, EntryRows
from auxtap.core.source_tree import SRT_ROOT
from auxtap.tracer.flow.steps import step_of
from auxtap.tracer.report.entries import CaptureSite, FileTrace, StageBranch
from auxtap.tracer.report.readings import Reading
from auxtap.tracer.report.roles import Role, Step
from auxtap.tracer.report.trace_report import Evidence, Flow, Hazard, LayerRule, TraceReport

_FACT_TITLES = {
    "captured": "What is captured",
    "layers": "Which layers",
    "dropped": "Where pipeline stages drop the states",
    "gated": "Which stages capture at all",
    "broken": "Where the way is broken",
    "plugin": "Whether a patch is needed",
}


_FORMS = {
    "sum": "{}",
    "gather": "the gather of {} over the ranks' rows",
    "state": "a copy of {}",
    "in_block": "what the block is given ({}), taken within it,",
}
_TIMES = {
    "before": "before each block",
    "next": "behind the block before",
    "within": "before it changes",
    "behind_last": "behind the last block",
}
_OPENINGS = ("(", "[", "{", "=")


def show_report(report: TraceReport) -> None:
    """Print the whole report to stdout."""
    print_parts([title_of(report), *_spaced(_parts(report))])


def print_parts(parts: Iterable[RenderableType]) -> None:
    """Print parts to stdout; without a terminal the blanks that pad tables are left out."""
    console = out()
    if console.is_terminal:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text))
        return
    with console.capture() as capture:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text))
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().removesuffix("\n").split("\n")))


def _spaced(parts: Iterable[RenderableType]) -> Iterator[RenderableType]:
    for part in parts:
        yield Text("")
        yield part


def show_role(role: Role) -> None:
    """Print one role's sentence."""
    what = "stage branch" if role.is_branch else "capture site"
    out().print(Text(f"{role.name} ({what}, {role.step.value}): {role.explanation}"), soft_wrap=True)


def describe_changes(report: TraceReport) -> str:
    """Say which files were read as they are on disk and not as in the commit; nothing where there are none."""
    if not report.changed:
        return ""
    shown = ", ".join(map(str, report.changed[:3])) + (", ..." if len(report.changed) > 3 else "")
    return f" and {_count(len(report.changed), 'file')} as on disk: {shown}"


def title_of(report: TraceReport) -> Text:
    """Return the line that heads a report."""
    n_sites = sum(len(trace.capture_sites) for trace in report.files)
    n_branches = sum(len(trace.stage_branches) for trace in report.files)
    title = Text()
    title.append(f"SGLang {report.release}", style="bold")
    title.append(
        f" ({report.origin}, {report.commit[:12]}{describe_changes(report)}): {_count(n_sites, 'capture site')}, "
    )
    title.append(f"{_count(n_branches, 'stage branch')} in {_count(len(report.files), 'file')}, ")
    title.append(f"{report.n_unknown} unknown", style="bold red" if report.n_unknown else "")
    return title


def _count(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def _parts(report: TraceReport) -> Iterator[RenderableType]:
    if report.flows:
        yield _flow_tree(report.flows)
    for step in Step:
        tree = _step_tree(step, report.files)
        if tree is not None:
            yield tree
    if report.layer_rules:
        yield Group(Text("Layers, in every convention", style="bold"), *_layer_tables(report))
    yield from _fact_lists(report)
    yield from _delivery_lists(report)
    yield from _hazard_lists(report)
    yield from _reading_lists(report)
    yield from _skipped_lists(report)


def _short(path: PurePosixPath) -> str:
    return str(path.relative_to(SRT_ROOT) if path.is_relative_to(SRT_ROOT) else path)


def _flow_tree(flows: Iterable[Flow]) -> Tree:
    tree = Tree(Text("Model classes, from the entry to the backbone that captures", style="bold"))
    for flow in flows:
        branch = tree
        for link in flow.links:
            label = Text.assemble((link.name, "cyan"), f"  {link.how}  ", (f"{_short(link.file)}:{link.line}", "dim"))
            branch = branch.add(label)
        if flow.setter is not None:
            branch.add(Text(f"layers are chosen by {flow.setter}"))
        for reason in flow.breaks:
            branch.add(Text(f"broken: {reason}", style="red"))
    return tree


def _step_tree(step: Step, traces: Iterable[FileTrace]) -> Tree | None:
    tree = Tree(Text(step.value, style="bold"))
    for trace in traces:
        scopes: dict[str, list[CaptureSite | StageBranch]] = {}
        for entry in sorted(trace.entries, key=lambda entry: entry.line):
            if step_of(trace, entry) is step:
                scopes.setdefault(entry.scope, []).append(entry)
        for scope, found in scopes.items():
            label = Text.assemble((_short(trace.file), "dim"), "  ", (scope, "cyan"))
            tree.add(Group(label, _entry_rows(found)))
    return tree if tree.children else None


def _entry_rows(entries: Iterable[CaptureSite | StageBranch]) -> EntryRows:
    return EntryRows([EntryRow(entry.line, entry.role, entry.code, _detail(entry)) for entry in entries])


def _detail(entry: CaptureSite | StageBranch) -> str | None:
    words = entry.note or _words(entry)
    if isinstance(entry, CaptureSite) and entry.value and entry.code.endswith(_OPENINGS):
        # The source line breaks off before what is assigned, appended or given.
        return f"{entry.value}; {words}" if words else entry.value
    return words


def _words(entry: CaptureSite | StageBranch) -> str | None:
    if isinstance(entry, StageBranch):
        if entry.drops_aux:
            return f"returns {entry.returns} without the captured states"
        return f"places {entry.places}" if entry.places else None
    if entry.role == "hand_over":
        return f"to {entry.to}"
    if entry.offset:
        return f"adds {entry.offset} to each given id"
    return None


def _layer_tables(report: TraceReport) -> Iterator[RenderableType]:
    groups: dict[LayerRule, list[str]] = {}
    for rule in report.layer_rules:
        groups.setdefault(replace(rule, scope="", evidence=()), []).append(rule.scope)
    for rule, scopes in groups.items():
        yield Padding(Text(", ".join(scopes), style="cyan"), (0, 0, 0, 2))
        yield Padding(_layer_table(rule, report.num_layers), (0, 0, 0, 4))


def _layer_table(rule: LayerRule, num_layers: int | None) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for heading in ("capture index", "is the input of", "draft-config id", "transformers"):
        table.add_column(heading, justify="right" if heading == "capture index" else "left", overflow="fold")
    for index, given in rule.ids_by_index():
        words = "none" if given is None else str(given)
        table.add_row(str(index), f"block {index}", words, Text(f"hidden_states[{index}]"))
    if rule.resolved is None:
        known = rule.offset is not None and rule.shift is not None
        difference = (rule.offset or 0) + (rule.shift or 0)
        given_words = "depends on the list" if not known else f"i - {difference}" if difference else "i"
        table.add_row("i", "block i", given_words, Text("hidden_states[i]"))
    if rule.default is None:
        return table
    known_words = f" for {num_layers} blocks" if rule.resolved is not None and num_layers is not None else ""
    hint = "" if rule.resolved is not None else " (--num-layers N works them out)"
    return Group(Text(f"default{known_words}: {rule.default}{hint}"), table)


def _fact_lists(report: TraceReport) -> Iterator[RenderableType]:
    for kind, title in _FACT_TITLES.items():
        facts = [fact for fact in report.facts if fact.kind == kind]
        if facts:
            items = (_item(fact.text, fact.evidence) for fact in facts)
            yield Group(Text(title, style="bold"), *items)


def _delivery_lists(report: TraceReport) -> Iterator[RenderableType]:
    if report.delivery:
        texts: dict[str, list[Evidence]] = {}
        for step in report.delivery:
            texts.setdefault(step.text, []).append(step.evidence)
        title = Text("Delivery: what the server does with the states", style="bold")
        yield Group(title, *(_item(text, evidence) for text, evidence in texts.items()))


def _hazard_lists(report: TraceReport) -> Iterator[RenderableType]:
    if report.hazards:
        title = Text("Hazards: settings under which states are wrong or missing", style="bold")
        yield Group(title, *(_item(hazard_words(hazard), hazard.evidence) for hazard in report.hazards))


def hazard_words(hazard: Hazard) -> str:
    """Return a hazard in lines."""
    state = "on by default" if hazard.default_on else "off by default"
    where = "" if hazard.hardware is None else f" on {hazard.hardware}"
    return f"{hazard.name}: {hazard.text}\nwhen: {hazard.trigger} ({state}{where})\navoid: {hazard.avoid}"


def _reading_lists(report: TraceReport) -> Iterator[RenderableType]:
    if report.readings:
        title = Text("What a patch captures and what it refuses, and why", style="bold")
        yield Group(title, *(_item(reading_words(each), _reading_places(each)) for each in report.readings))


def reading_words(reading: Reading) -> str:
    """Return what a patch does with a class, and why not more."""
    if reading.objections:
        return f"{reading.scope} is not captured: {'; '.join(each.reason for each in reading.objections)}"
    state = " + ".join(filter(None, (reading.hidden, reading.residual)))
    if reading.kind == "loop":
        named = f"--model {reading.file.stem}"
        return f"{reading.scope} captures nothing; a line at the top of a round takes {state} ({named})"
    ways = dict.fromkeys((_FORMS[place.form].format(state), _TIMES[place.when]) for place in reading.places)
    return f"{reading.scope} takes {', and '.join(f'{form} {when}' for form, when in ways)}"


def _reading_places(reading: Reading) -> list[Evidence]:
    taken = [line for place in reading.places for line in (place.at, *place.inside)]
    lines = [each.at for each in reading.objections] or taken
    return list(dict.fromkeys(lines))


def _skipped_lists(report: TraceReport) -> Iterator[RenderableType]:
    if report.skipped:
        title = Text("Passed over: files that could not be read", style="bold red")
        yield Group(title, *(_item(f"{_short(item.file)}: {item.reason}", ()) for item in report.skipped))


def _item(text: str, evidence: Iterable[Evidence]) -> RenderableType:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    places = ", ".join(_places_by_file(evidence))
    table.add_row("  -", Text.assemble(text, "\n" if places else "", (places, "dim")))
    return table


def _places_by_file(evidence: Iterable[Evidence]) -> list[str]:
    """Return `file:1, 2` for each file, lines in the given order."""
    lines: dict[PurePosixPath, list[str]] = {}
    for item in evidence:
        lines.setdefault(item.file, []).append(str(item.line))
    return [f"{_short(file)}:{','.join(numbers)}" for file, numbers in lines.items()]
