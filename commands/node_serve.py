"""`auxtap serve --node` and `auxtap extract --node`: the work is done on the node, and watched from here."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from auxtap.commands.context import parse_layers
from auxtap.core.errors import ExitCode, ExtractionError, UsageError

if TYPE_CHECKING:
    from auxtap.extraction.datasets.reading import Dataset
    from auxtap.extraction.run.job import RunOptions
    from auxtap.node.node_session import NodeSession

POLL_S = 0.5


def explain_flags(name: str, user: Sequence[str], *, as_json: bool) -> None:
    """Show the final command line of a profile, each flag with its origin; the node is not contacted."""
    from auxtap.commands.node_source import read_source
    from auxtap.commands.views import node_view
    from auxtap.node.flags import final_flags
    from auxtap.node.library import find_profile

    profile = find_profile(name)
    flags = final_flags(profile, profile.model_path, read_source(profile).needed, user)
    node_view.show_flags(profile, flags, as_json=as_json)


def serve_on_node(
    name: str,
    user: Sequence[str],
    *,
    layers: str | None,
    final: str,
    models: str,
    port: int,
    timeout_s: float | None,
    restarts: int,
    detach: bool,
    as_json: bool,
) -> None:
    """Start a profile's server on its node, or find it running; then forward its port until Ctrl-C.

    The server is the node's: it goes on when this command ends.
    """
    from auxtap.commands.node_source import make_patch
    from auxtap.commands.views import console, node_view
    from auxtap.node import serving
    from auxtap.node.flags import final_flags
    from auxtap.node.library import find_profile
    from auxtap.node.node_session import open_node

    profile = find_profile(name)
    # Before anything is sent: what this says does not depend on what the release needs.
    final_flags(profile, profile.model_path, (), user, final)
    chosen = parse_layers(layers) if layers is not None else profile.layers
    patch = make_patch(profile, models)
    with open_node(profile, console.say) as session, detaching(name):
        tree = serving.make_tree(session, patch, console.say)
        planned = serving.plan_server(session, patch, tree, chosen, user, final)
        patience_s = timeout_s or profile.ready_timeout_s
        server = serving.start_server(session, planned, restarts=restarts, timeout_s=patience_s)
        where = f"the server on {session.host} (pid {server.pid}, log {server.log})"
        console.say(f"{where} runs already" if server.already else f"started {where}")
        ready_s = serving.wait_ready(session, patience_s, console.say)
        if detach:
            node_view.show_node_server(name, session.host, server, ready_s, None, as_json=as_json)
            return
        _hold_forward(session, name, server, ready_s, port, as_json=as_json)


def _hold_forward(session: "NodeSession", name: str, server: Any, ready_s: float, port: int, *, as_json: bool) -> None:
    """Forward the server's port until a person has enough, over lost connections too."""
    from auxtap.commands.views import console, node_view
    from auxtap.serving.processes import choose_port

    local = choose_port("127.0.0.1", port)
    shown = False
    while True:
        session.agent.call("hello")
        with session.agent.connection.forward(local, server.port):
            if not shown:
                url = f"http://127.0.0.1:{local}"
                node_view.show_node_server(name, session.host, server, ready_s, url, as_json=as_json)
                shown = True
            while session.agent.connection.is_up():
                time.sleep(POLL_S)
        console.say(f"the connection to {session.profile.ssh.host} was lost; connecting again")


@contextlib.contextmanager
def detaching(name: str) -> Iterator[None]:
    """Let Ctrl-C, and what else asks a command to end, end the watching only; say what goes on."""
    from auxtap.commands.views import console

    try:
        yield
    except KeyboardInterrupt:
        console.say(
            f"what runs on the node goes on: auxtap status --node {name} shows it, auxtap stop --node {name} ends it"
        )
        raise


@dataclass(frozen=True)
class Watch:
    """How a run is watched: `out` is its store on the node, the profile's when None."""

    out: str | None
    log_json: str | None
    metrics_port: int | None
    as_json: bool


def extract_on_node(
    name: str, dataset: "Dataset", options: "RunOptions", watch: Watch, *, shard: str | None, canary: int
) -> int:
    """Extract through a node's server into a store of the node; watched from here, picked up again."""
    from auxtap.commands.extract_run import open_observers
    from auxtap.commands.views import console, extract_view
    from auxtap.extraction.run.reporting import observe_all
    from auxtap.node import remote_run
    from auxtap.node.library import find_profile
    from auxtap.node.node_session import open_node

    profile = find_profile(name)
    with open_node(profile, console.say) as session, detaching(name), contextlib.ExitStack() as stack:
        store = watch.out or session.profile.storage.store
        if not store.startswith("/"):
            raise UsageError(f"--out {store} is no absolute path on the node", hint="leave it out to use the profile's")
        if options.max_spool_bytes is None and session.profile.storage.spool_bytes:
            options = replace(options, max_spool_bytes=session.profile.storage.spool_bytes)
        digest = remote_run.send_dataset(session, dataset, console.say)
        run = remote_run.start_run(session, digest, options, store, shard=shard, canary=canary)
        state = "runs already" if run.already else "is started"
        console.say(f"the extraction on {session.host} {state} (pid {run.pid})")
        observers, log = open_observers(stack, watch.log_json, watch.metrics_port)
        show = stack.enter_context(extract_view.extraction_progress())
        summary = remote_run.watch_run(session, run, observe_all([show, *observers]), console.say)
        if log is not None:
            log.write("summary", extract_view.summary_record(summary, store))
    extract_view.show_summary(summary, store, as_json=watch.as_json)
    if summary.stopped:
        raise ExtractionError(
            f"on the node: stopped: {summary.stopped}", hint="mend the cause there, then run the same command again"
        )
    if summary.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.DONE if summary.complete else ExitCode.CHECK_FAILED
