"""Serve on a node: the tree made there, the server started detached, watched until it is ready."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auxtap.core.codec import plain
from auxtap.core.errors import ServerError, UsageError
from auxtap.node.flags import FinalFlags, final_flags
from auxtap.node.node_session import NodeSession
from auxtap.node.patch import NodePatch
from auxtap.node.remote_agent import Progress
from auxtap.serving.profile import LaunchSpec, default_layers

TREE_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class PlannedServer:
    """A server as it is to be started: nothing of it exists yet."""

    spec: LaunchSpec
    flags: FinalFlags


@dataclass(frozen=True)
class NodeServer:
    """A server that runs on a node; `already` when it did so before, `ready_s` from its start on."""

    url: str
    port: int
    pid: int
    spool: str
    log: str
    model: str
    layers: tuple[int, ...]
    already: bool
    ready_s: float = 0.0


def plan_server(
    session: NodeSession, patch: NodePatch, tree: str, layers: tuple[int, ...], user: Sequence[str], final: str = ""
) -> PlannedServer:
    """Plan the server of a profile with the user's own arguments behind the profile's.

    Without `layers` the patch's are taken where the model has them, else three of its depth; without `final` the
    profile's.

    Raises:
        UsageError: an argument is refused, or the model is not whole or too shallow for the layers.
    """
    profile = session.profile
    flags = final_flags(profile, profile.model_path, patch.source.needed, user, final)
    model = session.agent.call("model", {"path": profile.model_path})
    root = Path(profile.root)
    spec = LaunchSpec(
        python=Path(profile.python),
        tree=Path(tree),
        model_path=profile.model_path,
        port=profile.port,
        spool=Path(profile.storage.spool),
        layers=choose_layers(layers or patch.layers, model, explicit=bool(layers)),
        final=final or profile.final,
        cpu=profile.cpu,
        release=patch.source.release,
        patch_digest=patch.patch_digest,
        source_digest=patch.source_digest,
        extra_arguments=flags.extra,
        extra_environment=dict(profile.environment),
        log=root / "logs" / f"server-{profile.port}.log",
        bytecode=root / "bytecode",
    )
    return PlannedServer(spec, flags)


def choose_layers(wanted: tuple[int, ...], model: Mapping[str, Any], *, explicit: bool) -> tuple[int, ...]:
    """Return the layers to capture, of a model that is whole.

    Raises:
        UsageError: the model is not whole, or lacks a layer that the profile names.
    """
    if "error" in model:
        raise UsageError(f"the model on the node cannot be served: {model['error']}", hint="see model.path")
    if model["problems"]:
        raise UsageError(
            f"the model on the node is not whole: {model['problems'][0]} ({len(model['problems'])} problems)",
            hint="fetch it again; auxtap node check NAME lists every file",
        )
    depth = model["depth"]
    if wanted and (depth is None or max(wanted) < depth):
        return wanted
    if depth is None:
        raise UsageError("the model's depth is not known", hint="name model.layers in the profile")
    if explicit:
        raise UsageError(
            f"layer {max(wanted)} is asked for, and the model has {depth} blocks", hint="indices end below"
        )
    return default_layers(depth)


def make_tree(session: NodeSession, patch: NodePatch, progress: Progress) -> str:
    """Send the patch and have the patched tree made; return where it is.

    Raises:
        AuxtapError: the node's SGLang is another one, or there is no room.
    """
    payload = patch.payload()
    progress(f"sending the patch ({len(payload):,} bytes) and checking the node's SGLang {patch.source.release}")
    made = session.agent.call("tree", {"source": session.profile.sglang}, payload=payload, timeout_s=TREE_TIMEOUT_S)
    if made["made"]:
        progress(f"made {made['tree']} on the node")
    return str(made["tree"])


def start_server(session: NodeSession, planned: PlannedServer, *, restarts: int, timeout_s: float) -> NodeServer:
    """Start the server, or find it running as planned.

    An extraction that finds it gone starts it again, `restarts` times at most; it has `timeout_s` to become ready.

    Raises:
        ServerError: another one runs, or the port is taken.
    """
    wanted = {
        "spec": plain(planned.spec),
        "argv": list(planned.flags.argv),
        "restarts": restarts,
        "timeout_s": timeout_s,
    }
    answer = session.agent.call("server-start", wanted)
    return NodeServer(
        url=answer["url"],
        port=answer["port"],
        pid=answer["process"]["pid"],
        spool=answer["spool"],
        log=answer["log"],
        model=answer["model"],
        layers=tuple(answer["layers"]),
        already=answer["already"],
    )


def wait_ready(session: NodeSession, timeout_s: float, progress: Progress) -> float:
    """Follow a server on the node until it is ready, over any number of lost connections; return its seconds.

    Raises:
        ServerError: it died, or is not ready in time; it is left as it is.
    """
    deadline = time.monotonic() + timeout_s
    told = 0

    def follow() -> float | None:
        nonlocal told
        for event in session.agent.events("server-watch", {"phases_told": told}):
            if "phase" in event:
                told += 1
                progress(event["phase"])
            elif "dead" in event:
                raise _DeadError(event["dead"], event["log"])
            elif "ready" in event:
                return float(event["ready"])
            if time.monotonic() > deadline:
                raise _DeadError(f"it is not ready after {timeout_s:.0f} s", "")
        return None

    try:
        while (seconds := session.agent.again(follow)) is None:
            pass
    except _DeadError as dead:
        name = session.profile.name
        where = (
            f"auxtap logs --node {name} shows {dead.log}"
            if dead.log
            else f"auxtap status --node {name}; auxtap stop --node {name}"
        )
        raise ServerError(f"the server on the node: {dead.reason}", hint=where) from None
    return float(seconds)


class _DeadError(Exception):
    def __init__(self, reason: str, log: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.log = log
