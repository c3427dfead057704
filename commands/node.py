"""`auxtap node check|new|list`, and `auxtap status|stop|logs --node`: a machine that is reached by ssh."""

from typing import Annotated, Any

import typer

from auxtap.core.errors import CheckFailedError, ServerError

node_app = typer.Typer(
    name="node", no_args_is_help=True, help="Check nodes that are reached by ssh, and make profiles."
)
NAME_HELP = "Profile: NAME of nodes/NAME.toml, or the path of one."
Name = Annotated[str, typer.Argument(metavar="NAME", help=NAME_HELP)]
NodeOption = Annotated[str, typer.Option("--node", metavar="NAME", help=NAME_HELP)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@node_app.command()
def check(name: Name, json_output: Json = False) -> None:
    """Check a node before it costs money: access, SGLang, GPUs, space, model, all-reduce, flags."""
    from auxtap.commands.node_source import read_source
    from auxtap.commands.views import console, node_view
    from auxtap.node.checks import FAIL, CheckLine, check_node
    from auxtap.node.library import find_profile
    from auxtap.node.node_session import open_node

    profile = find_profile(name)
    source = read_source(profile)
    lines: tuple[CheckLine, ...]
    unreachable: ServerError | None = None
    try:
        with open_node(profile, console.say) as session:
            lines = check_node(session, source, console.say)
    except ServerError as error:
        unreachable = error
        lines = (CheckLine("ssh", FAIL, error.message, error.hint or ""),)
    failed = [line.name for line in lines if line.verdict == FAIL]
    if json_output:
        console.emit_json(node_view.check_record(profile.name, lines))
    else:
        node_view.show_checks(lines)
    if unreachable is not None:
        raise unreachable
    if failed:
        raise CheckFailedError(
            f"{profile.name} is not ready: {', '.join(failed)}", hint="each failed line says what to do"
        )


@node_app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the profile, nodes/NAME.toml.")],
    start: Annotated[str, typer.Option("--from", metavar="START", help="Starting point; auxtap node list shows them.")],
    json_output: Json = False,
) -> None:
    """Begin a profile from a ready-made starting point."""
    from auxtap.commands.views import console
    from auxtap.node.library import copy_starting_point

    path = copy_starting_point(name, start)
    if json_output:
        console.emit_json({"profile": str(path), "from": start})
    else:
        console.out().print(f"{path}: fill in every CHANGE-ME, then run auxtap node check {name}", soft_wrap=True)


@node_app.command(name="list")
def list_profiles(json_output: Json = False) -> None:
    """List the profiles here and the starting points."""
    from auxtap.commands.views import console
    from auxtap.node.library import known_profiles, starting_points

    profiles, points = known_profiles(), starting_points()
    if json_output:
        console.emit_json({"profiles": list(profiles), "starting_points": list(points)})
        return
    console.out().print(f"profiles in nodes/: {', '.join(profiles) or 'none'}", soft_wrap=True)
    console.out().print(f"starting points:    {', '.join(points)}", soft_wrap=True)


def show_node_status(name: str, *, as_json: bool) -> None:
    """Show what runs on a node: its server, its extractions, and what is left of dead ones."""
    from auxtap.commands.views import console, node_view
    from auxtap.node.library import find_profile
    from auxtap.node.node_session import open_node

    profile = find_profile(name)
    with open_node(profile, console.say) as session:
        found = session.agent.call("status")
    if as_json:
        console.emit_json({"node": profile.name, "host": profile.ssh.host, **found})
    else:
        node_view.show_status(profile.name, profile.ssh.host, found)


def stop(
    name: NodeOption,
    extraction: Annotated[
        bool, typer.Option("--extraction", help="Let extractions finish what is in flight; the server goes on.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Stop what auxtap started on a node, and nothing else: extractions, then the server."""
    from auxtap.commands.views import console, node_view
    from auxtap.node.library import find_profile
    from auxtap.node.node_session import open_node

    profile = find_profile(name)
    with open_node(profile, console.say) as session:
        runs: dict[str, Any] = session.agent.call("extract-stop", {"now": not extraction})
        server: dict[str, Any] = {} if extraction else session.agent.call("server-stop")
    if json_output:
        console.emit_json({"extractions": runs, "server": server})
    else:
        node_view.show_stopped(runs, server)
    left = [*runs["left"], *server.get("left", [])]
    if left:
        raise ServerError(
            f"processes on {profile.ssh.host} survive SIGKILL: {', '.join(map(str, left))}",
            hint="they wait for a device; see nvidia-smi and dmesg on the node",
        )


def logs(
    name: NodeOption,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is added, until Ctrl-C.")] = False,
    tail: Annotated[int, typer.Option("--bytes", min=1, help="Bytes of the log's end to show first.")] = 16384,
) -> None:
    """Show the log of a node's server."""
    import sys

    from auxtap.commands.views import console
    from auxtap.node.library import find_profile
    from auxtap.node.node_session import open_node

    profile = find_profile(name)
    with open_node(profile, console.say) as session:
        server = session.agent.call("status")["server"]
        if server["state"] == "none":
            raise ServerError(f"no server was started on {profile.ssh.host}", hint=f"auxtap serve --node {name}")
        offset = -tail

        def show() -> None:
            nonlocal offset
            arguments = {"path": server["log"], "offset": offset, "follow": follow}
            for event in session.agent.events("logs", arguments):
                if "text" in event:
                    offset = event["offset"]
                    sys.stdout.write(event["text"])
                    sys.stdout.flush()

        session.agent.again(show)
