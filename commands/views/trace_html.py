"""Write a trace as one HTML page that needs nothing else: diagrams of the flows, sites, layers, hazards."""

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import PurePosixPath

from auxtap.commands.views.flow_diagram import draw_flow
from auxtap.commands.views.trace_view import describe_changes
from auxtap.core.source_tree import SRT_ROOT
from auxtap.tracer.flow.steps import step_of
from auxtap.tracer.report.entries import CaptureSite, FileTrace, StageBranch
from auxtap.tracer.report.roles import Step, role_of
from auxtap.tracer.report.trace_report import Evidence, Flow, Hazard, LayerRule, TraceReport

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --dim: #626d7d; --paper: #fff; --line: #d8dee8; --soft: #f4f6fa;
  --accent: #1f5fbf; --bad: #b3261e; --good: #1b7f4b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ef; --dim: #97a1b2; --paper: #14181f; --line: #303846;
  --soft: #1c222c; --accent: #7fb0ff; --bad: #ff8a80; --good: #7fd6a5; } }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p { margin: .3rem 0; } .dim { color: var(--dim); } .bad { color: var(--bad); } .good { color: var(--good); }
code, .code { font: 13px/1.45 ui-monospace, monospace; } code { overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top; padding: .2rem .6rem;
  border-bottom: 1px solid var(--line); } th { color: var(--dim); font-weight: 600; }
td.line { text-align: right; color: var(--dim); white-space: nowrap; }
td.role { white-space: nowrap; color: var(--accent); }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } .scroll { overflow-x: auto; }
.card { background: var(--soft); border-left: 3px solid var(--bad); padding: .5rem .8rem; margin: .5rem 0; }
svg { display: block; } svg text { font: 12px ui-monospace, monospace; fill: var(--ink); }
svg .title { font-weight: 600; } svg .small { fill: var(--dim); font-size: 11px; }
svg rect { fill: var(--soft); stroke: var(--line); } svg rect.bad { stroke: var(--bad); }
svg path { stroke: var(--dim); fill: none; } svg path.bad { stroke: var(--bad); stroke-dasharray: 4 3; }
svg marker path { fill: var(--dim); stroke: none; }
"""


def page_of(report: TraceReport) -> str:
    """Return the whole page; everything that comes from a source tree is escaped."""
    body = "\n".join(_sections(report))
    title = escape(f"auxtap trace: SGLang {report.release}")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _sections(report: TraceReport) -> Iterator[str]:
    yield from _head(report)
    yield from _flows(report)
    yield from _layers(report)
    yield from _hazards(report.hazards)
    yield from _sites(report.files)
    if report.skipped:
        rows = (
            f"<tr><td><code>{_path(item.file)}</code></td><td>{escape(item.reason)}</td></tr>"
            for item in report.skipped
        )
        yield f"<h2>Passed over</h2><table>{''.join(rows)}</table>"


def _head(report: TraceReport) -> Iterator[str]:
    n_sites = sum(len(trace.capture_sites) for trace in report.files)
    n_branches = sum(len(trace.stage_branches) for trace in report.files)
    unknown = "bad" if report.n_unknown else "good"
    yield f"<h1>SGLang {escape(report.release)}: the way of the captured hidden states</h1>"
    yield (
        f'<p class="dim">{escape(report.origin)}, commit <code>{escape(report.commit[:12])}</code>'
        f"{escape(describe_changes(report))}: {n_sites} capture sites and {n_branches} stage branches "
        f"in {len(report.files)} files, "
        f'<span class="{unknown}">{report.n_unknown} unknown</span></p>'
    )


def _flows(report: TraceReport) -> Iterator[str]:
    if not report.flows:
        return
    yield "<h2>Model classes</h2>"
    for number, flow in enumerate(report.flows):
        state = f'<span class="bad">broken</span>: {escape("; ".join(flow.breaks))}' if flow.breaks else "whole"
        is_open = " open" if number == 0 or len(report.flows) <= 4 else ""
        yield f"<details{is_open}><summary><b>{escape(flow.model)}</b> <span class='dim'>{state}</span></summary>"
        yield f'<div class="scroll">{draw_flow(flow, report.delivery)}</div>'
        yield f"{_steps(flow)}</details>"
    if report.delivery:
        yield "<h3>Delivery: what the server does with the states</h3>"
        rows = (_row(step.evidence, step.kind, step.text) for step in report.delivery)
        yield f'<div class="scroll"><table>{"".join(rows)}</table></div>'


def _steps(flow: Flow) -> str:
    rows = "".join(_row(step.evidence, step.kind, step.text) for step in flow.steps)
    return f'<details><summary>Step by step</summary><div class="scroll"><table>{rows}</table></div></details>'


def _row(evidence: Evidence, role: str, text: str) -> str:
    return (
        f'<tr><td class="line">{_path(evidence.file)}:{evidence.line}</td><td class="role">{escape(role)}</td>'
        f"<td>{escape(text)}<br><code>{escape(evidence.code)}</code></td></tr>"
    )


def _layers(report: TraceReport) -> Iterator[str]:
    if not report.layer_rules:
        return
    yield "<h2>Layers, in every convention</h2>"
    yield '<div class="scroll"><table><tr><th>setter</th><th>given ids</th><th>entry j is</th><th>default</th>'
    yield "<th>capture indices</th><th>draft-config ids</th><th>transformers</th></tr>"
    for rule in report.layer_rules:
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _layer_cells(rule))}</tr>"
    yield "</table></div>"


def _layer_cells(rule: LayerRule) -> tuple[str, ...]:
    offsets = (
        ("as they are" if item.offset == 0 else "not understood" if item.offset is None else f"+{item.offset}")
        + (f" ({item.condition})" if item.condition else "")
        for item in rule.offsets
    )
    entry = "not known" if rule.shift is None else f"capture index j{f' + {rule.shift}' if rule.shift else ''}"
    indices = rule.resolved or ()
    return (
        rule.scope,
        "; ".join(offsets),
        entry,
        rule.default or "none",
        ", ".join(map(str, indices)) or ("-" if rule.default is None else "give --num-layers"),
        ", ".join("none" if given is None else str(given) for _, given in rule.ids_by_index()),
        ", ".join(f"hidden_states[{index}]" for index in indices),
    )


def _hazards(hazards: Iterable[Hazard]) -> Iterator[str]:
    for number, hazard in enumerate(hazards):
        if number == 0:
            yield "<h2>Hazards: settings under which states are wrong or missing</h2>"
        state = "on by default" if hazard.default_on else "off by default"
        where = "" if hazard.hardware is None else f" on {hazard.hardware}"
        rows = "".join(
            f'<tr><td class="line">{_path(item.file)}:{item.line}</td><td><code>{escape(item.code)}</code></td></tr>'
            for item in hazard.evidence
        )
        yield (
            f'<div class="card"><b>{escape(hazard.name)}</b> <span class="dim">{state}{escape(where)}</span>'
            f"<p>{escape(hazard.text)}</p><p><b>when</b> {escape(hazard.trigger)}</p>"
            f"<p><b>avoid</b> {escape(hazard.avoid)}</p>"
            f"<details><summary>{len(hazard.evidence)} lines of evidence</summary><table>{rows}</table></details></div>"
        )


def _sites(traces: Iterable[FileTrace]) -> Iterator[str]:
    traces = tuple(traces)
    if traces:
        yield "<h2>Every site, along the flow</h2>"
    for step in Step:
        found = [(trace, entry) for trace in traces for entry in _entries(trace) if step_of(trace, entry) is step]
        if found:
            rows = "".join(_site_row(trace, entry) for trace, entry in found)
            yield (
                f"<details><summary><b>{escape(step.value)}</b> <span class='dim'>{len(found)}</span></summary>"
                f'<div class="scroll"><table>{rows}</table></div></details>'
            )


def _entries(trace: FileTrace) -> list[CaptureSite | StageBranch]:
    return sorted(trace.entries, key=lambda entry: entry.line)


def _site_row(trace: FileTrace, entry: CaptureSite | StageBranch) -> str:
    note = f'<br><span class="dim">{escape(entry.note)}</span>' if entry.note else ""
    role = f'<span title="{escape(role_of(entry.role).explanation)}">{escape(entry.role)}</span>'
    return (
        f'<tr><td class="line">{_path(trace.file)}:{entry.line}</td><td class="role">{role}</td>'
        f"<td><code>{escape(entry.code)}</code><br>"
        f'<span class="dim">{escape(entry.scope)}</span>{note}</td></tr>'
    )


def _path(path: PurePosixPath) -> str:
    return escape(str(path.relative_to(SRT_ROOT) if path.is_relative_to(SRT_ROOT) else path))
