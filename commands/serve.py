"""`auxtap serve`: a patched SGLang server with the tap on, in the foreground."""

import contextlib
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auxtap.commands.context import cache_layout, parse_final, parse_layers
from auxtap.commands.patching import DEFAULT_MODELS, MODELS_HELP
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import ServerError, UsageError

if TYPE_CHECKING:
    from auxtap.serving.profile import LaunchSpec

READY_TIMEOUT_S = 1800.0
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


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
    """Start a patched server with the tap on; Ctrl-C stops it whole."""
    from auxtap.checkout.worktree import check_applied
    from auxtap.serving.processes import choose_port
    from auxtap.serving.profile import FINAL_STATES, LaunchSpec, check_extra_arguments

    extra = tuple(sglang_args or ())
    chosen_final = parse_final(final)
    if node is not None:
        from auxtap.commands import node_serve

        refuse_with_node(worktree=worktree, model_path=model_path, spool=spool, python=python, log=log)
        if explain:
            node_serve.explain_flags(node, extra, as_json=json_output)
            return
        node_serve.serve_on_node(
            node, extra, layers=layers, final=chosen_final, models=models, port=port,
            timeout_s=timeout, detach=detach, as_json=json_output,
        )  # fmt: skip
        return
    if worktree is None or model_path is None:
        raise UsageError("--worktree and --model-path are needed", hint="or --node NAME, whose profile has both")
    check_extra_arguments(extra)
    chosen_layers = parse_layers(layers) if layers is not None else None
    applied = check_applied(worktree)
    cache = cache_layout()
    check_model_path(model_path)
    chosen_port = choose_port(host, port)
    spec = LaunchSpec(
        python=serving_python(python, applied.release, cache, cpu=cpu),
        tree=applied.path,
        model_path=local_model(model_path),
        host=host,
        port=chosen_port,
        spool=(spool or default_spool(chosen_port, cache)).absolute(),
        layers=chosen_layers or layers_for(applied.layers, model_path),
        final=chosen_final or FINAL_STATES[0],
        cpu=cpu,
        release=applied.release,
        patch_digest=applied.patch_digest,
        source_digest=applied.source_digest,
        required_arguments=applied.server_flags,
        extra_arguments=extra,
        log=(log or cache.logs / f"server-{chosen_port}.log").absolute(),
        bytecode=cache.bytecode / f"sglang-{applied.release}",
    )
    try:
        run_server(spec, timeout or READY_TIMEOUT_S, json_output=json_output)
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


def run_server(spec: "LaunchSpec", timeout_s: float, *, json_output: bool) -> None:
    """Run a server until a person stops it.

    Raises:
        ServerError: it does not become ready, or ends by itself.
    """
    from auxtap.serving.server import ServerProcess
    from auxtap.ui import console, engine_view

    assert spec.spool is not None
    show = engine_view.show_server_line if json_output else engine_view.show_server
    with terminations_interrupt():
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
                raise server.wait_ended()
        except KeyboardInterrupt:
            console.say("the server is stopped")
            if not ready:
                raise


def tidy_spool(spool: Path) -> None:
    """Remove a spool that nobody named, unless it holds parts that an extractor may still want."""
    from auxtap.serving.spool import remove_spool
    from auxtap.ui import console

    left = remove_spool(spool)
    if left:
        console.say(f"{left} finished parts are left in {spool}; remove it when no extractor needs them")


@contextlib.contextmanager
def terminations_interrupt() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C, so that a server is stopped whichever way auxtap is asked to end."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serving_python(python: Path | None, release: str, cache: CacheLayout, *, cpu: bool) -> Path:
    """Return the Python to serve with.

    Raises:
        ServerError: the CPU engine of the release is not set up, or there is no such Python.
    """
    from auxtap.serving.engine_env import find_engine

    if python is not None:
        # Not resolved: the python of a virtual environment is a link, and its place is what makes it one.
        found = python.expanduser().absolute()
        if not os.access(found, os.X_OK) or found.is_dir():
            raise ServerError(f"{python} is no Python that can be run", hint="name the python of an environment")
        return found
    if not cpu:
        return Path(sys.executable)
    engine = find_engine(release, cache)
    if engine is None:
        raise ServerError(
            f"the engine environment for SGLang {release} is not set up",
            hint=f"run auxtap engine setup --release {release}",
        )
    return engine.python


def default_spool(port: int, cache: CacheLayout) -> Path:
    """Return a spool of this user and port, in memory where there is such a place that is surely ours."""
    folder = SHARED_MEMORY / f"auxtap-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return folder / str(port)
    return cache.root / "spool" / str(port)


def check_model_path(model_path: str) -> None:
    """Refuse what is written like a path and is no model folder; a name on the hub is SGLang's to find.

    Raises:
        UsageError: there is no such folder, or it holds no `config.json`.
    """
    path = Path(model_path).expanduser()
    written_as_path = model_path.startswith((".", "/", "~")) or path.exists() or model_path.count("/") > 1
    if not written_as_path:
        return
    if not path.is_dir():
        raise UsageError(f"no model folder {model_path}", hint="--model-path names a folder with a config.json")
    if not (path / "config.json").is_file():
        raise UsageError(f"{model_path} is no model folder: it has no config.json")


def local_model(model_path: str) -> str:
    """Return the absolute path of a local model, and a hub's name as it is."""
    path = Path(model_path).expanduser()
    return str(path.resolve()) if path.is_dir() else model_path


def layers_for(patch_layers: tuple[int, ...], model_path: str) -> tuple[int, ...]:
    """Return the layers of the patch when the model has them, else three of its depth.

    Raises:
        UsageError: the patch names none and the model's depth is not known.
    """
    from auxtap.serving.profile import default_layers, model_depth

    depth = model_depth(local_model(model_path))
    if patch_layers and (depth is None or max(patch_layers) < depth):
        return patch_layers
    if depth is None:
        raise UsageError(f"the depth of {model_path} is not known here", hint="name --layers")
    return default_layers(depth)
