"""One node, connected: its profile with the node's own paths, and its agent."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass

from auxtap.node.node_profile import NodeProfile
from auxtap.node.remote_agent import Progress, RemoteAgent
from auxtap.node.ssh import SshConnection


@dataclass(frozen=True)
class NodeSession:
    """A connected node; every path of `profile` is absolute here.

    `connected_s` is what it took to connect and get an answer; `clock_off_s` how far the node's clock is ahead.
    """

    profile: NodeProfile
    agent: RemoteAgent
    user: str
    host: str
    connected_s: float
    clock_off_s: float


@contextlib.contextmanager
def open_node(profile: NodeProfile, progress: Progress) -> Iterator[NodeSession]:
    """Connect to a node for the length of the block; what was started there goes on after it.

    Raises:
        ServerError: it cannot be reached, does not let us in, or its Python is unusable.
    """
    with SshConnection(profile.ssh) as connection:
        agent = RemoteAgent(profile, connection, progress)
        began = time.monotonic()
        agent.call("hello")
        connected_s = time.monotonic() - began
        before = time.time()
        hello = agent.call("hello")
        after = time.time()
        # The node read its clock some time between the two.
        off = max(0.0, hello["time"] - after) - max(0.0, before - hello["time"])
        expanded = expand_paths(profile, hello["home"])
        yield NodeSession(
            expanded, agent, hello["user"], hello["host"], round(connected_s, 2), round(off, 1)
        )  # fmt: skip


def expand_paths(profile: NodeProfile, home: str) -> NodeProfile:
    """Return the profile with `~/` replaced by the node user's home."""

    def expand(path: str) -> str:
        return f"{home.rstrip('/')}/{path[2:]}" if path.startswith("~/") else path

    return dataclasses.replace(
        profile,
        root=expand(profile.root),
        python=expand(profile.python),
        sglang=expand(profile.sglang),
        model_path=expand(profile.model_path),
        storage=dataclasses.replace(
            profile.storage, spool=expand(profile.storage.spool), store=expand(profile.storage.store)
        ),
    )
