"""`auxtap trace`: where hidden states are captured, how they travel, where they are lost."""

import difflib
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from auxtap.commands.context import cache_layout
from auxtap.core.errors import CheckFailedError, UsageError

if TYPE_CHECKING:
    from auxtap.tracer.report.trace_report import TraceReport
    from auxtap.tracer.source.trace_cache import TraceCache


@dataclass(frozen=True)
class _Asked:
    """What is to be traced, of whichever tree."""

    models: tuple[str, ...]
    everything: bool
    file: str | None
    num_layers: int | None
    is_folder: bool
    fresh: bool

    @property
    def options(self) -> tuple[str, ...]:
        """What, besides the commit, decides a report."""
        return (*self.models, f"all={self.everything}", f"file={self.file}", f"layers={self.num_layers}")


def trace(
    source: Annotated[
        str | None, typer.Argument(help="SGLang tree: PATH, PATH@REF, an installed package, or pypi:0.5.9.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Models, by file or class name, with commas between them.")
    ] = "deepseek,kimi_k25",
    everything: Annotated[bool, typer.Option("--all", help="Trace every file of sglang/srt.")] = False,
    file: Annotated[str | None, typer.Option(help="Trace one file, such as models/llama.py.")] = None,
    role: Annotated[str | None, typer.Option(help="Show these roles only, with commas between them.")] = None,
    hazards_only: Annotated[bool, typer.Option("--hazards-only", help="Show the hazards only.")] = False,
    num_layers: Annotated[
        int | None, typer.Option(min=1, help="Number of blocks, to work out the default layers.")
    ] = None,
    against: Annotated[str | None, typer.Option(metavar="SOURCE", help="Show what changed since another tree.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as one HTML page.")] = None,
    sarif: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what needs attention as SARIF 2.1.0; - is stdout.")
    ] = None,
    folder: Annotated[
        bool, typer.Option("--folder", help="Take SOURCE as any folder of Python files, and trace all.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Trace anew, without what earlier runs kept.")] = False,
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
    roles = () if role is None else _known_roles(role)
    if roles and hazards_only:
        raise UsageError("--role shows roles, --hazards-only none", hint="leave one of the two out")
    if against is not None and html is not None:
        raise UsageError("--html shows one tree, --against two", hint="write the page without --against")
    if sarif is not None and (against is not None or json_output):
        raise UsageError("--sarif is a report of its own", hint="leave out --json and --against")
    asked = _Asked(models, everything or folder, file, num_layers, folder, fresh)
    report = _report(source, asked)
    if against is not None:
        _show_changes(_report(against, asked), report, json_output=json_output)
    else:
        narrowed = _narrowed(report, roles, hazards_only=hazards_only)
        if html is not None:
            _write_page(report, html)
        if sarif is not None:
            _write_sarif(narrowed, sarif)
        _show(narrowed, json_output=json_output, quiet=html is not None or sarif is not None)
    _refuse_unknown(report)


def _report(source: str, asked: _Asked) -> "TraceReport":
    """Return the report of a tree: the kept one of its commit where there is one."""
    from auxtap.checkout.identity import known_identity
    from auxtap.tracer.source.trace_cache import NO_CACHE, TraceCache

    layout = cache_layout()
    cache = NO_CACHE if asked.fresh else TraceCache(layout.root / "traces")
    if asked.is_folder:
        return _folder_report(source, cache)
    identity = known_identity(source, layout)
    kept = None if identity is None else cache.find_report(identity.commit, asked.options)
    if kept is not None:
        return replace(kept, origin=source)

    from auxtap.checkout.source import open_source
    from auxtap.commands.views import console
    from auxtap.tracer.tracing import trace_tree

    tree = open_source(source, layout, console.say).tree
    only = None if asked.file is None else PurePosixPath(asked.file)
    report = trace_tree(
        tree, asked.models, everything=asked.everything, only=only, num_layers=asked.num_layers, cache=cache
    )
    cache.keep_report(report, asked.options)
    return report


def _folder_report(source: str, cache: "TraceCache") -> "TraceReport":
    from auxtap.tracer.source.folder import read_folder
    from auxtap.tracer.tracing import trace_tree

    found = read_folder(Path(source).expanduser())
    report = trace_tree(found.tree, everything=True, cache=cache)
    return replace(report, skipped=(*found.skipped, *report.skipped))


def _narrowed(report: "TraceReport", roles: tuple[str, ...], *, hazards_only: bool) -> "TraceReport":
    from auxtap.tracer.report import filters

    if hazards_only:
        return filters.only_hazards(report)
    return filters.only_roles(report, roles) if roles else report


def _show(report: "TraceReport", *, json_output: bool, quiet: bool) -> None:
    if json_output:
        from auxtap.commands.views import console

        console.emit_json(report.to_json())
    elif not quiet:
        from auxtap.commands.views import trace_view

        trace_view.show_report(report)


def _show_changes(old: "TraceReport", new: "TraceReport", *, json_output: bool) -> None:
    from auxtap.tracer.report.compare import compare

    comparison = compare(old, new)
    if json_output:
        from auxtap.commands.views import console

        console.emit_json(comparison.to_json())
    else:
        from auxtap.commands.views import trace_diff_view

        trace_diff_view.show_comparison(comparison)


def _write_page(report: "TraceReport", path: Path) -> None:
    from auxtap.commands.views import trace_html

    _write(path, trace_html.page_of(report).encode())


def _write_sarif(report: "TraceReport", path: Path) -> None:
    from auxtap.commands.views import console
    from auxtap.commands.views.trace_sarif import sarif_of
    from auxtap.core.files import json_bytes
    from auxtap.core.version import __version__

    log = sarif_of(report, __version__)
    if str(path) == "-":
        console.emit_json(log)
    else:
        _write(path, json_bytes(log))


def _write(path: Path, data: bytes) -> None:
    from auxtap.commands.views import console
    from auxtap.core.files import publish_bytes

    try:
        publish_bytes(path, data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}", hint="name a file you may write") from None
    console.say(f"wrote {path}")


def _known_roles(given: str) -> tuple[str, ...]:
    from auxtap.tracer.report.entries import UNKNOWN
    from auxtap.tracer.report.roles import ROLES

    names = tuple(name.strip() for name in given.split(",") if name.strip())
    for name in names:
        if name not in ROLES and name != UNKNOWN:
            raise _no_role(name, list(ROLES))
    if not names:
        raise UsageError("--role names nothing", hint="name a role, such as --role append")
    return names


def _no_role(name: str, known: list[str]) -> UsageError:
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.4) or sorted(known)
    return UsageError(f"no role named {name!r}", hint=f"roles: {', '.join(near)}")


def _explain(name: str) -> None:
    from auxtap.commands.views import trace_view
    from auxtap.tracer.report.roles import ROLES, UNKNOWN_ROLE

    roles = {**ROLES, UNKNOWN_ROLE.name: UNKNOWN_ROLE}
    if name not in roles:
        raise _no_role(name, list(roles))
    trace_view.show_role(roles[name])


def _refuse_unknown(report: "TraceReport") -> None:
    """Raise when the tracer did not recognise, or could not read, something that was asked for."""
    for trace in report.files:
        scopes = trace.unknown_scopes
        if scopes:
            noun = "site" if report.n_unknown == 1 else "sites"
            raise CheckFailedError(
                f"{report.n_unknown} {noun} unclassified, first in {trace.file} ({', '.join(scopes)})",
                hint="they stand under Unknown above: look at them before you rely on this trace",
            )
    if report.skipped:
        noun = "file" if len(report.skipped) == 1 else "files"
        raise CheckFailedError(
            f"{len(report.skipped)} {noun} passed over, first {report.skipped[0].file}: {report.skipped[0].reason}",
            hint="what they hold is not in this trace",
        )
