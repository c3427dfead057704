"""`auxtap serve`: a patched SGLang server with the tap on, in the foreground."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auxtap.commands.context import parse_final
from auxtap.commands.patching import DEFAULT_MODELS, MODELS_HELP
from auxtap.commands.serve_spec import Wanted, patched_spec, plugin_spec
from auxtap.core.errors import UsageError

if TYPE_CHECKING:
    from auxtap.serving.profile import LaunchSpec

READY_TIMEOUT_S = 1800.0


def serve(
    worktree: Annotated[Path | None, typer.Option(help="Worktree that auxtap apply made.")] = None,
    model_path: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Model folder, or a model's name on the hub.")
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(metavar="3,31,59", help="Capture indices. [default: those of the patch, or the model's depth]"),
    ] = None,
    final: Annotated[
        str | None,
        typer.Option(
            metavar="post-norm|pre-norm|both",
            help="Final states to take, after or before the final norm. [default: post-norm; the profile's]",
        ),
    ] = None,
    plugin: Annotated[
        bool, typer.Option("--plugin", help="Capture in the SGLang that --python has, unpatched (0.5.11 on).")
    ] = False,
    plugin_patch: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --plugin: folder that auxtap patch wrote. [default: a committed one]"),
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Serve on the CPU with auxtap's engine environment.")] = False,
    spool: Annotated[
        Path | None, typer.Option(help="Folder the tap writes into. [default: /dev/shm/auxtap-UID/PORT]")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 30000,
    python: Annotated[
        Path | None,
        typer.Option(help="Python whose packages serve the tree. [default: the running one; --cpu: the engine's]"),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds to wait until it is ready. [default: 1800; the profile's]")
    ] = None,
    restart: Annotated[
        int, typer.Option(min=0, help="Starts it gets at most when it dies, or when an extraction finds it stuck.")
    ] = 3,
    log: Annotated[Path | None, typer.Option(help="The server's log. [default: in auxtap's cache]")] = None,
    node: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Serve on the node of nodes/NAME.toml; --port is then this machine's."),
    ] = None,
    models: Annotated[str, typer.Option(help=f"With --node: {MODELS_HELP}")] = DEFAULT_MODELS,
    explain: Annotated[
        bool, typer.Option("--explain", help="With --node: show the command line, each flag's origin; start nothing.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="With --node: end once it is ready, forward nothing.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one line of JSON when it is ready.")] = False,
    sglang_args: Annotated[
        list[str] | None, typer.Argument(metavar="-- SGLANG_ARGS", help="Arguments for SGLang, after --.")
    ] = None,
) -> None:
    """Start a server with the tap on, patched or by plugin; Ctrl-C stops it whole."""
    extra = tuple(sglang_args or ())
    chosen_final = parse_final(final)
    if node is not None:
        from auxtap.commands import node_serve

        refuse_with_node(
            worktree=worktree, model_path=model_path, spool=spool, python=python, log=log,
            plugin=plugin or None, plugin_patch=plugin_patch,
        )  # fmt: skip
        if explain:
            node_serve.explain_flags(node, extra, as_json=json_output)
            return
        node_serve.serve_on_node(
            node, extra, layers=layers, final=chosen_final, models=models, port=port,
            timeout_s=timeout, restarts=restart, detach=detach, as_json=json_output,
        )  # fmt: skip
        return
    wanted = Wanted(python, layers, chosen_final, cpu, spool, host, port, log, extra)
    if plugin:
        spec = plugin_spec(worktree, model_path, plugin_patch, wanted)
    else:
        spec = patched_spec(worktree, model_path, wanted)
    try:
        run_server(spec, timeout or READY_TIMEOUT_S, restarts=restart, json_output=json_output)
    finally:
        if spool is None and spec.spool is not None:
            tidy_spool(spec.spool)


def refuse_with_node(**options: object) -> None:
    """Refuse options that a node's profile answers.

    Raises:
        UsageError: one of them is given.
    """
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"--{name.replace('_', '-')} and --node exclude each other", hint="the profile says it")


def run_server(spec: "LaunchSpec", timeout_s: float, *, restarts: int, json_output: bool) -> None:
    """Run a server until a person stops it; once ready it is started again at most `restarts` times.

    Raises:
        ServerError: it does not become ready, or ends by itself and was started again often enough.
    """
    from auxtap.commands.views import console, engine_view
    from auxtap.serving.keeper import Keeper
    from auxtap.serving.server import ServerProcess

    assert spec.spool is not None
    show = engine_view.show_server_line if json_output else engine_view.show_server
    server = ServerProcess(spec)
    ready = False
    try:
        with server:
            console.say(f"starting SGLang {spec.release} on {spec.url}; its log is {spec.log}")
            seconds = server.wait_ready(timeout_s=timeout_s, progress=console.say)
            ready = True
            row = engine_view.ServerRow(
                spec.url, spec.spool, spec.log, server.pid, spec.release, spec.layers, spec.final, round(seconds, 1)
            )
            show(row)
            raise Keeper(server, restarts=restarts, timeout_s=timeout_s, progress=console.say).keep()
    except KeyboardInterrupt:
        console.say("the server is stopped")
        if not ready:
            raise


def tidy_spool(spool: Path) -> None:
    """Remove a spool that nobody named, unless it holds parts that an extractor may still want."""
    from auxtap.commands.views import console
    from auxtap.serving.spool import remove_spool

    left = remove_spool(spool)
    if left:
        console.say(f"{left} finished parts are left in {spool}; remove it when no extractor needs them")
