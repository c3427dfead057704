"""Run an extraction on the node, detached; whoever watches may come and go."""

import contextlib
import json
import os
import re
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from auxtap.core.errors import AuxtapError, ExitCode, ExtractionError
from auxtap.core.files import publish_bytes, sha256_bytes
from auxtap.node.agent import node_server
from auxtap.node.agent.detached import read_record, start_detached, write_record
from auxtap.node.agent.node_folder import NodeFolder
from auxtap.serving.processes import ProcessMark, end_session, is_alive, send_signal, session_members

POLL_S = 0.2
BEAT_S = 3.0
TELL_S = 0.5
_DIGEST = re.compile("[0-9a-f]{64}")


def dataset_path(folder: NodeFolder, digest: str) -> Path:
    """Return where a dataset lies, which may not be there yet."""
    if _DIGEST.fullmatch(digest) is None:
        raise ExtractionError("no dataset's digest")
    return folder.datasets / f"{digest}.jsonl"


def keep_dataset(folder: NodeFolder, digest: str, payload: bytes) -> "dict[str, Any]":
    """Keep a dataset that was sent."""
    data = zlib.decompress(payload)
    if sha256_bytes(data) != digest:
        raise ExtractionError("the dataset arrived damaged", hint="run the same command again")
    publish_bytes(dataset_path(folder, digest), data)
    return {"bytes": len(data)}


def start_extraction(
    folder: NodeFolder, job: "Mapping[str, Any]", launcher: str, request: "Mapping[str, Any]"
) -> "dict[str, Any]":
    """Start the extraction into a store, or find the one that runs.

    Raises:
        ExtractionError: another one writes into that store.
    """
    path = folder.run_record(job["store"])
    wanted = sha256_bytes(json.dumps(job, sort_keys=True).encode())
    with folder.alone():
        record = read_record(path)
        if record is not None and is_alive(ProcessMark.from_json(record["process"])):
            if record["digest"] == wanted:
                return {**record, "already": True}
            raise ExtractionError(
                f"another extraction writes into {job['store']} on the node (pid {record['process']['pid']})",
                hint="watch it with the command that began it, or end it with auxtap stop --node NAME --extraction",
            )
        number = 1 + (record or {}).get("number", 0)
        stem = f"extract-{path.stem}-{number}"
        facts = {
            "digest": wanted,
            "number": number,
            "store": job["store"],
            "events": str(folder.logs / f"{stem}.jsonl"),
            "log": str(folder.logs / f"{stem}.log"),
            "started": time.time(),
        }
        inner = {**request, "command": "extract-run", "arguments": {"job": dict(job), "events": facts["events"]}}
        asked = path.with_suffix(".request")
        publish_bytes(asked, json.dumps({**inner, "n_bytes": 0}).encode() + b"\n")
        publish_bytes(Path(facts["events"]), b"")
        start_detached(
            [sys.executable, "-I", "-c", launcher],
            os.environ,
            log=Path(facts["log"]),
            record=lambda mark: write_record(path, mark, facts),
            stdin=asked,
        )
        return {**(read_record(path) or {}), "already": False}


class _Events:
    """What the run tells, a line each, for those who watch now or later."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._told_at = 0.0

    def observe(self, progress: Any) -> None:
        now = time.monotonic()
        if progress.message is not None or now - self._told_at >= TELL_S:
            self._told_at = now
            self.tell({"progress": asdict(progress)})

    def say(self, text: str) -> None:
        self.tell({"said": text})

    def tell(self, event: "Mapping[str, Any]") -> None:
        # A disk that is full must not end the run before the store has said so.
        with contextlib.suppress(OSError):
            self._file.write(json.dumps(event).encode() + b"\n")


class _NodeKeeper:
    """Starts the node's server again, as it was started."""

    def __init__(self, folder: NodeFolder) -> None:
        self._folder = folder

    def restart(self, lost: Any) -> None:
        if self._is_ours(lost):
            node_server.restart_server(self._folder, lost.nonces)

    def is_at_it(self, lost: Any) -> bool:
        return self._is_ours(lost) and node_server.is_starting(self._folder)

    def _is_ours(self, lost: Any) -> bool:
        record = read_record(self._folder.server_record)
        return record is not None and Path(record["spool"]) in lost.spools


def run_here(folder: NodeFolder, job: "Mapping[str, Any]", events_path: Path) -> "dict[str, Any]":
    """Carry the extraction out in this process."""
    from auxtap.extraction.datasets.reading import read_dataset
    from auxtap.extraction.run.driver import ExtractionJob, StopRequest, run_extraction
    from auxtap.extraction.run.job import Shard

    events = _Events(events_path)
    stop = StopRequest()

    def escalate(number: int, frame: object) -> None:
        stop.escalate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, escalate)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        dataset = read_dataset(dataset_path(folder, job["dataset"]))
        options = dict(job["options"])
        if options.get("shard"):
            options["shard"] = Shard(*map(int, options["shard"].split("/")))
        n_prompts = options.pop("canary", 0)
        if n_prompts:
            send_canary(job, dataset, n_prompts, events.say)
        wanted = ExtractionJob(dataset, job["url"], Path(job["spool"]), Path(job["store"]), **options)
        summary = run_extraction(wanted, events.observe, stop=stop, keeper=_NodeKeeper(folder))
    except AuxtapError as error:
        events.tell({"error": error.message, "hint": error.hint, "code": int(error.exit_code)})
        return {"ended": "failed"}
    except Exception as error:
        events.tell({"error": f"the extraction failed: {error!r}", "hint": None, "code": int(ExitCode.BUG)})
        raise
    events.tell({"summary": asdict(summary)})
    return {"ended": "done"}


def send_canary(job: "Mapping[str, Any]", dataset: Any, n_prompts: int, say: "Callable[[str], None]") -> None:
    """Check the server's states before the many prompts go out.

    Raises:
        IntegrityError: a check failed.
    """
    from auxtap.extraction.canary.run import CanaryTarget, run_canary
    from auxtap.extraction.canary.state_checks import FAILED
    from auxtap.extraction.run.job import ServerPlace

    target = CanaryTarget(ServerPlace(job["url"], (Path(job["spool"]),)), timeout_s=job["options"]["timeout_s"])
    report = run_canary(target, max(2, n_prompts), dataset, say)
    for check in report.checks:
        if check.outcome == FAILED:
            say(f"canary: {check.name} failed: {check.detail}")
    report.require()
    say(report.in_a_line())


def watch_extraction(folder: NodeFolder, arguments: "Mapping[str, Any]") -> "Iterator[dict[str, Any]]":
    """Give the events of a run from `offset` on, until it has ended; each with the offset behind it."""
    record = read_record(folder.run_record(arguments["store"]))
    if record is None:
        raise ExtractionError("no extraction into that store was started on the node")
    mark = ProcessMark.from_json(record["process"])
    at = int(arguments["offset"])
    next_beat = 0.0
    while True:
        alive = is_alive(mark)
        with Path(record["events"]).open("rb") as file:
            file.seek(at)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].splitlines(keepends=True):
            at += len(line)
            event = json.loads(line)
            yield {**event, "offset": at}
            if "summary" in event or "error" in event:
                return
        if not alive and not whole:
            yield {
                "error": f"the extraction on the node died: {_last_line(Path(record['log']))}",
                "hint": "run the same command again: it continues",
                "code": int(ExitCode.EXTRACTION),
                "offset": at,
            }
            return  # fmt: skip
        if time.monotonic() >= next_beat:
            next_beat = time.monotonic() + BEAT_S
            yield {"beat": True}
        time.sleep(POLL_S)


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if lines:
            return lines[-1][:300]
    return "its log is empty"


def extractions(folder: NodeFolder) -> "list[dict[str, Any]]":
    """Return what is known of the extractions of this folder."""
    found = []
    for path in sorted((folder.root / "runs").glob("*.json")):
        record = read_record(path)
        if record is not None:
            mark = ProcessMark.from_json(record["process"])
            alive = is_alive(mark)
            pids = [member.pid for member in session_members(mark)] if alive else []
            found.append({**record, "running": alive, "pids": pids, "last": _last_event(Path(record["events"]))})
    return found


def _last_event(path: Path) -> "dict[str, Any] | None":
    with contextlib.suppress(OSError, ValueError):
        lines = path.read_bytes().splitlines()
        if lines:
            value = json.loads(lines[-1])
            return value if isinstance(value, dict) else None
    return None


def stop_extractions(folder: NodeFolder, *, now: bool) -> "dict[str, Any]":
    """Let running extractions finish what is in flight, or end them `now`; what is stored stays."""
    asked, left = [], []
    for record in extractions(folder):
        if record["running"]:
            mark = ProcessMark.from_json(record["process"])
            asked.append(mark.pid)
            if now:
                left += end_session(mark)
            else:
                send_signal(mark, signal.SIGINT)
    return {"asked": asked, "left": left}
