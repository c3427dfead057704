"""Extract on a node: the dataset sent once, the run started there detached, watched from here."""

import zlib
from dataclasses import dataclass
from typing import Any

from auxtap.core.codec import plain
from auxtap.core.errors import AuxtapError, ExitCode, ServerError
from auxtap.core.files import sha256_bytes
from auxtap.extraction.datasets.reading import Dataset
from auxtap.extraction.datasets.sent import sent_lines
from auxtap.extraction.run.job import ExtractionProgress, ExtractionSummary, Observer, RunOptions, SampleFate
from auxtap.node.node_session import NodeSession
from auxtap.node.remote_agent import Progress

SEND_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class NodeRun:
    """An extraction that runs on a node, or ran; `already` when it did so before it was asked for."""

    store: str
    pid: int
    already: bool


def send_dataset(session: NodeSession, dataset: Dataset, progress: Progress) -> str:
    """Send a dataset unless the node has it; return the digest by which it is known there."""
    data = b"".join(sent_lines(dataset))
    digest = sha256_bytes(data)
    if not session.agent.call("dataset-has", {"digest": digest}):
        payload = zlib.compress(data)
        progress(f"sending {len(dataset.samples):,} samples ({len(payload):,} bytes)")
        session.agent.call("dataset-put", {"digest": digest}, payload=payload, timeout_s=SEND_TIMEOUT_S)
    return digest


def start_run(
    session: NodeSession, dataset_digest: str, options: RunOptions, store: str, *, shard: str | None, canary: int
) -> NodeRun:
    """Start the extraction next to the node's server, or find it running.

    Raises:
        ServerError: no server is ready there.
        ExtractionError: another extraction writes into that store.
    """
    found = session.agent.call("status")
    server = found["server"]
    running = any(run["running"] and run["store"] == store for run in found["extractions"])
    # A run that goes on is picked up whatever its server does; it says so itself when that is gone.
    if server["state"] != "ready" and not (running and "url" in server):
        state = {"none": "was started", "starting": "is ready yet"}.get(server["state"], "lives")
        raise ServerError(
            f"no server {state} on {session.profile.ssh.host}",
            hint=f"auxtap serve --node {session.profile.name} starts one",
        )
    job = {
        "dataset": dataset_digest,
        "url": server["url"],
        "spool": server["spool"],
        "store": store,
        "options": {**plain(options), "shard": shard, "canary": canary},
    }
    answer = session.agent.call("extract-start", {"job": job})
    return NodeRun(store, answer["process"]["pid"], answer["already"])


def watch_run(session: NodeSession, run: NodeRun, observe: Observer, progress: Progress) -> ExtractionSummary:
    """Watch a run to its end, over any number of lost connections.

    Raises:
        AuxtapError: what ended the run on the node, with its own exit code.
    """
    offset = 0
    ended: dict[str, Any] | None = None

    def follow() -> None:
        nonlocal offset, ended
        for event in session.agent.events("extract-watch", {"store": run.store, "offset": offset}):
            offset = event.get("offset", offset)
            if "progress" in event:
                observe(ExtractionProgress(**event["progress"]))
            elif "said" in event:
                progress(event["said"])
            elif "summary" in event or "error" in event:
                ended = event
                return

    while ended is None:
        session.agent.again(follow)
    if "error" in ended:
        error = AuxtapError(f"on the node: {ended['error']}", hint=ended["hint"])
        error.exit_code = ExitCode(ended["code"])
        raise error
    summary = dict(ended["summary"])
    summary["not_stored"] = tuple(SampleFate(**fate) for fate in summary["not_stored"])
    return ExtractionSummary(**summary)
