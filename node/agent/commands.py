"""What the agent can be asked for, by name."""

import getpass
import json
import platform
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auxtap.core.version import __version__
from auxtap.node.agent import node_facts, node_run, node_server, node_tree, stores
from auxtap.node.agent.node_folder import NodeFolder


@dataclass(frozen=True)
class Call:
    """One request with all that belongs to it."""

    folder: NodeFolder
    arguments: "Mapping[str, Any]"
    payload: bytes
    request: "Mapping[str, Any]"
    launcher: str


def _hello(call: Call) -> "dict[str, Any]":
    return {
        "home": str(Path.home()),
        "root": str(call.folder.root),
        "user": getpass.getuser(),
        "host": platform.node(),
        "python": platform.python_version(),
        "version": __version__,
        "time": time.time(),
    }


def _make_tree(call: Call) -> "dict[str, Any]":
    sent = json.loads(zlib.decompress(call.payload))
    plan = node_tree.TreePlan(
        source=Path(call.arguments["source"]),
        release=sent["release"],
        patch=sent["patch"].encode("utf-8", "surrogateescape"),
        patch_digest=sent["patch_digest"],
        source_digest=sent["source_digest"],
        files=sent["files"],
        after=sent["after"],
    )
    with call.folder.alone():
        return node_tree.make_tree(plan, call.folder)


def _start_server(call: Call) -> "dict[str, Any]":
    return node_server.start_server(call.folder, call.arguments)


def _logs(call: Call) -> "Iterator[dict[str, Any]]":
    offset, follow = call.arguments["offset"], call.arguments["follow"]
    return node_server.follow_log(Path(call.arguments["path"]), offset, follow=follow)


COMMANDS: "Mapping[str, Callable[[Call], Any]]" = {
    "hello": _hello,
    "facts": lambda call: node_facts.gather(call.folder, call.arguments),
    "collective": lambda call: node_facts.time_collective(call.folder, call.arguments),
    "model": lambda call: node_facts.look_at_model(Path(call.arguments["path"])),
    "tree": _make_tree,
    "server-start": _start_server,
    "server-watch": lambda call: node_server.watch_server(call.folder, call.arguments),
    "server-stop": lambda call: node_server.stop_server(call.folder),
    "status": lambda call: {
        "server": node_server.server_status(call.folder), "extractions": node_run.extractions(call.folder)
    },
    "logs": _logs,
    "store-look": lambda call: stores.look(stores.asked_path(call.arguments)),
    "store-send": lambda call: stores.send(stores.asked_path(call.arguments), call.arguments["files"]),
    "dataset-has": lambda call: node_run.dataset_path(call.folder, call.arguments["digest"]).is_file(),
    "dataset-put": lambda call: node_run.keep_dataset(call.folder, call.arguments["digest"], call.payload),
    "extract-start": lambda call: node_run.start_extraction(
        call.folder, call.arguments["job"], call.launcher, call.request
    ),
    "extract-run": lambda call: node_run.run_here(
        call.folder, call.arguments["job"], Path(call.arguments["events"])
    ),
    "extract-watch": lambda call: node_run.watch_extraction(call.folder, call.arguments),
    "extract-stop": lambda call: node_run.stop_extractions(call.folder, now=call.arguments["now"]),
}  # fmt: skip
