"""Show nodes: checks, flags, servers, and what runs."""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from auxtap.commands.views import console
from auxtap.commands.views.engine_view import setup_progress
from auxtap.commands.views.extract_view import human_bytes
from auxtap.node.checks import FAIL, WARN, CheckLine
from auxtap.node.fetch import FetchCount, Observer
from auxtap.node.flags import FinalFlags
from auxtap.node.node_profile import NodeProfile
from auxtap.node.serving import NodeServer

_STYLES = {"ok": "green", WARN: "yellow", FAIL: "bold red"}


def check_record(name: str, lines: Sequence[CheckLine]) -> dict[str, Any]:
    """Return what `auxtap node check --json` prints."""
    return {"node": name, **check_list(lines)}


def check_list(lines: Sequence[CheckLine]) -> dict[str, Any]:
    """Return checks as JSON: whether none failed, and each."""
    checks = [
        {"check": line.name, "verdict": line.verdict, "detail": line.detail, "remedy": line.remedy} for line in lines
    ]
    return {"ready": all(line.verdict != FAIL for line in lines), "checks": checks}


def show_checks(lines: Sequence[CheckLine]) -> None:
    """Print one line a check, and under it the remedy of those that are not ok."""
    width = max(len(line.name) for line in lines)
    for line in lines:
        text = Text(f"{line.verdict:<5}", style=_STYLES[line.verdict])
        text.append(f"{line.name:<{width}}  {line.detail}", style="default")
        console.out().print(text, soft_wrap=True)
        if line.remedy:
            console.out().print(Text(f"{'':<{width + 5}}  {line.remedy}", style="dim"), soft_wrap=True)


def show_flags(profile: NodeProfile, flags: FinalFlags, *, as_json: bool) -> None:
    """Show the final command line, a line a flag, with where it came from."""
    if as_json:
        rows = [{"words": list(flag.words), "origin": flag.origin, "reason": flag.reason} for flag in flags.flags]
        replaced = [{"words": list(flag.words), "reason": flag.reason} for flag in flags.replaced]
        environment = dict(profile.environment)
        console.emit_json({"node": profile.name, "flags": rows, "replaced": replaced, "environment": environment})
        return
    table = Table(box=box.SIMPLE, show_header=True)
    for column in ("flag", "from", "why"):
        table.add_column(column)
    for flag in flags.flags:
        table.add_row(escape(" ".join(flag.words)), flag.origin, escape(flag.reason))
    for flag in flags.replaced:
        table.add_row(escape(" ".join(flag.words)), "(replaced)", escape(f"{flag.reason}; the user's took its place"))
    for variable, value in profile.environment.items():
        table.add_row(escape(f"{variable}={value}"), "profile", f"{escape(profile.path.name)}: environment")
    console.out().print(table)


def show_node_server(
    name: str, host: str, server: NodeServer, ready_s: float, url: str | None, *, as_json: bool
) -> None:
    """Say that a server is ready, where it is reached from here, and what comes next."""
    if as_json:
        record = {
            "node": name, "host": host, "url": url, "node_url": server.url, "pid": server.pid, "spool": server.spool,
            "log": server.log, "layers": list(server.layers), "already": server.already, "ready_s": ready_s,
        }  # fmt: skip
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()
        return
    lines = [
        f"ready: {server.url} on {host}, {server.model}",
        f"captures:  {', '.join(map(str, server.layers))} and the final state",
        f"log:       {server.log} (auxtap logs --node {name})",
        f"next:      auxtap extract DATASET --node {name}",
    ]
    if url is not None:
        lines.append(f"forwarded: {url}; Ctrl-C ends the forwarding only, auxtap stop --node {name} the server")
    for line in lines:
        console.out().print(escape(line), soft_wrap=True)
    console.out().file.flush()


def show_status(name: str, host: str, found: Mapping[str, Any]) -> None:
    """Say what runs on a node."""
    for line in _status_lines(name, host, found):
        console.out().print(escape(line), soft_wrap=True)


def _status_lines(name: str, host: str, found: Mapping[str, Any]) -> list[str]:
    server = found["server"]
    state = server["state"]
    lines = []
    if state == "none":
        lines.append(f"{host}: no server was started")
    elif state in ("starting", "ready"):
        lines.append(f"{host}: server {state}, pid {server['process']['pid']}, {server['url']}, {server['model']}")
        lines.append(f"  {len(server['pids'])} processes; spool {server['spool']}; log {server['log']}")
    else:
        lines.append(f"{host}: the last server is dead: {server['reason']}")
        if server["pids"]:
            pids = ", ".join(map(str, server["pids"]))
            lines.append(f"  processes of it are left: {pids}; auxtap stop --node {name} ends them")
    for run in found["extractions"]:
        state = f"running, pid {run['process']['pid']}" if run["running"] else "ended"
        lines.append(f"extraction into {run['store']}: {state}{_last(run['last'])}")
    return lines


def _last(event: Mapping[str, Any] | None) -> str:
    if event is None:
        return ""
    if "error" in event:
        return f"; failed: {event['error']}"
    facts = event.get("summary") or event.get("progress") or {}
    return (
        f"; {facts.get('stored', 0) + facts.get('already_stored', 0):,} of {facts.get('n_samples', 0):,} samples stored"
    )


def show_stopped(runs: Mapping[str, Any], server: Mapping[str, Any]) -> None:
    """Say what was stopped."""
    for pid in runs["asked"]:
        console.out().print(f"extraction {pid}: asked to end")
    stopped = server.get("stopped", [])
    if server:
        console.out().print(f"server: {len(stopped)} processes stopped" if stopped else "server: nothing was running")
    if server.get("parts_left"):
        console.say(f"{server['parts_left']} finished parts are left in the spool; an extractor may still want them")


@contextlib.contextmanager
def fetch_progress() -> Iterator[Observer]:
    """Show how far a fetch is: in one line that changes on a terminal, in a line now and then elsewhere."""
    with setup_progress() as say:
        yield lambda progress: say(
            f"{progress.n_here:,} of {progress.n_lines:,} samples are here, {human_bytes(progress.n_bytes)} came"
        )


def show_fetched(count: FetchCount, store: Path, *, as_json: bool) -> None:
    """Say what a fetch came to."""
    if as_json:
        console.emit_json({"store": str(store), **asdict(count)})
        return
    console.out().print(
        f"{count.n_lines:,} samples' fates are in {escape(str(store))}; {count.n_files:,} files "
        f"({human_bytes(count.n_bytes)}) came now: auxtap check verifies them",
        soft_wrap=True,
    )
