"""`auxtap trace`: where hidden states are captured, how they travel, where they are lost."""

import difflib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from auxtap.commands.context import cache_layout
from auxtap.core.errors import CheckFailedError, UsageError

if TYPE_CHECKING:
    from auxtap.tracer.report import TraceReport


def trace(
    source: Annotated[
        str | None, typer.Argument(help="SGLang tree: PATH, PATH@REF, an installed package, or pypi:0.5.9.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Models, by file or class name, with commas between them.")
    ] = "deepseek,kimi_k25",
    everything: Annotated[bool, typer.Option("--all", help="Trace every file of sglang/srt.")] = False,
    file: Annotated[str | None, typer.Option(help="Trace one file, such as models/llama.py.")] = None,
    num_layers: Annotated[
        int | None, typer.Option(min=1, help="Number of blocks, to work out the default layers.")
    ] = None,
    explain: Annotated[str | None, typer.Option(metavar="ROLE", help="Explain a role and exit.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Trace where hidden states are captured, how they travel and where they are lost."""
    if explain is not None:
        _explain(explain)
        return
    if source is None:
        raise UsageError("which tree? SOURCE is missing", hint="run auxtap trace pypi:0.5.9")
    models = tuple(name.strip() for name in model.split(",") if name.strip())
    if not models:
        raise UsageError("--model names nothing", hint="name a file of models/, such as --model llama")

    from auxtap.checkout.source import open_source
    from auxtap.tracer.tracing import trace_tree
    from auxtap.ui import console, trace_view

    tree = open_source(source, cache_layout(), console.say).tree
    only = None if file is None else PurePosixPath(file)
    report = trace_tree(tree, models, everything=everything, only=only, num_layers=num_layers)
    if json_output:
        console.emit_json(report.to_json())
    else:
        trace_view.show_report(report)
    _refuse_unknown(report)


def _explain(name: str) -> None:
    from auxtap.tracer.roles import ROLES, UNKNOWN_ROLE
    from auxtap.ui import trace_view

    roles = {**ROLES, UNKNOWN_ROLE.name: UNKNOWN_ROLE}
    if name not in roles:
        near = difflib.get_close_matches(name, roles, n=5, cutoff=0.4) or sorted(roles)
        raise UsageError(f"no role named {name!r}", hint=f"roles: {', '.join(near)}")
    trace_view.show_role(roles[name])


def _refuse_unknown(report: "TraceReport") -> None:
    """Raise when the tracer did not recognise something that was asked for."""
    for trace in report.files:
        scopes = trace.unknown_scopes
        if scopes:
            noun = "site" if report.n_unknown == 1 else "sites"
            raise CheckFailedError(
                f"{report.n_unknown} {noun} unclassified, first in {trace.file} ({', '.join(scopes)})",
                hint="they stand under Unknown above: look at them before you rely on this trace",
            )
