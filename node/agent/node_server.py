"""The node's one server: started detached, watched, stopped by exactly the processes that are its own."""

import contextlib
import json
import os
import time
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from auxtap.core.codec import typed
from auxtap.core.errors import ServerError
from auxtap.core.files import publish_bytes, publish_json, sha256_bytes
from auxtap.core.keeping import living_nonces
from auxtap.node.agent.detached import read_record, start_detached, write_record
from auxtap.node.agent.node_folder import NodeFolder
from auxtap.serving import profile as launch
from auxtap.serving.processes import (
    ProcessMark,
    describe_listener,
    end_session,
    is_alive,
    port_is_free,
    session_members,
)
from auxtap.serving.server import StartWatch, answers
from auxtap.serving.server_log import ServerLog
from auxtap.serving.spool import is_armed, is_tapped, prepare_spool, remove_spool

POLL_S = 0.25
BEAT_S = 3.0
RELEASE_S = 5.0


def start_server(folder: NodeFolder, arguments: "Mapping[str, Any]") -> "dict[str, Any]":
    """Start the server, or find it running as it is wanted.

    Raises:
        ServerError: another server of ours runs or left processes, somebody else's has the port, or it cannot start.
    """
    spec, argv = typed(launch.LaunchSpec, arguments["spec"]), list(arguments["argv"])
    wanted = sha256_bytes(json.dumps([argv, launch.tap_environment(spec, spec.spool or Path())]).encode())
    with folder.alone():
        record = read_record(folder.server_record)
        if record is not None:
            mark = ProcessMark.from_json(record["process"])
            if is_alive(mark) and record["digest"] == wanted:
                return {**record, "already": True}
            _require_gone(record, mark)
        # Apart from the record, which is shown to people: the environment may hold secrets.
        publish_json(folder.server_launch, dict(arguments))
        facts = {"digest": wanted, "restarts_left": arguments["restarts"], "ready_timeout_s": arguments["timeout_s"]}
        return {**_launch(folder, spec, argv, facts), "already": False}


def restart_server(folder: NodeFolder, nonces: "Collection[str]") -> bool:
    """Start the server again as it was started, whatever state it is in; tell whether that was done.

    It is not when nothing is left of its restarts, when somebody stopped it, or when its writers are no longer
    `nonces` and it lives: then another start of it is at work already.

    Raises:
        ServerError: it cannot be stopped or started.
    """
    with folder.alone():
        record = read_record(folder.server_record)
        if record is None or record.get("stopped") or record.get("restarts_left", 0) < 1:
            return False
        mark = ProcessMark.from_json(record["process"])
        if is_alive(mark) and not living_nonces(Path(record["spool"])) & set(nonces):
            return False
        left = end_session(mark)
        if left:
            raise ServerError(f"processes of the server survive SIGKILL: {', '.join(map(str, left))}")
        _wait_until_let_go(record)
        arguments = json.loads(folder.server_launch.read_bytes())
        log = Path(record["log"])
        with contextlib.suppress(OSError):
            log.replace(log.with_name(f"{log.stem}.{record['restarts_left']}{log.suffix}"))
        facts = {key: record[key] for key in ("digest", "ready_timeout_s")}
        facts["restarts_left"] = record["restarts_left"] - 1
        _launch(folder, typed(launch.LaunchSpec, arguments["spec"]), list(arguments["argv"]), facts)
        return True


def _wait_until_let_go(record: "Mapping[str, Any]") -> None:
    """Wait for the last threads of killed processes, which hold port and spool a little longer than their ids."""
    deadline = time.monotonic() + RELEASE_S
    while not port_is_free(launch.LOOPBACK, record["port"]) or is_tapped(Path(record["spool"])):
        if time.monotonic() >= deadline:
            return
        time.sleep(0.1)


def is_starting(folder: NodeFolder) -> bool:
    """Tell whether the server is on its way and has time left to become ready."""
    record = read_record(folder.server_record)
    if record is None or not is_alive(ProcessMark.from_json(record["process"])):
        return False
    return not is_armed(Path(record["spool"])) and time.time() - record["started"] < record["ready_timeout_s"]


def _launch(
    folder: NodeFolder, spec: launch.LaunchSpec, argv: "list[str]", more: "Mapping[str, Any]"
) -> "dict[str, Any]":
    """Start a server whose port and spool are free, and return its record; the folder's lock is ours."""
    _require_free(spec.port)
    assert spec.spool is not None
    prepare_spool(spec.spool)
    facts = {
        **more,
        "argv": argv,
        "port": spec.port,
        "url": spec.url,
        "model": spec.model_path,
        "release": spec.release,
        "layers": list(spec.layers),
        "spool": str(spec.spool),
        "log": str(spec.log),
        "tree": str(spec.tree),
        "started": time.time(),
    }
    publish_bytes(spec.log, b"")
    spec.bytecode.mkdir(mode=0o700, parents=True, exist_ok=True)
    start_detached(
        [str(spec.python), "-m", "sglang.launch_server", *argv],
        _environment(folder, spec),
        log=spec.log,
        record=lambda mark: write_record(folder.server_record, mark, facts),
    )
    return read_record(folder.server_record) or {}


def _require_gone(record: "Mapping[str, Any]", mark: ProcessMark) -> None:
    hint = "auxtap stop --node NAME ends it; nothing is started beside it"
    if is_alive(mark):
        raise ServerError(
            f"a server of ours runs on the node already (pid {mark.pid}, port {record['port']}, {record['model']}), "
            "started in another way than is asked for now",
            hint=hint,
        )
    left = session_members(mark)
    if left:
        pids = ", ".join(str(member.pid) for member in left)
        raise ServerError(f"the last server on the node is dead but processes of it are left: {pids}", hint=hint)


def _require_free(port: int) -> None:
    if not port_is_free(launch.LOOPBACK, port):
        raise ServerError(
            f"port {port} of the node is in use by something that is not ours{describe_listener(port)}",
            hint="stop it there, or set another server.port in the profile",
        )


def _environment(folder: NodeFolder, spec: launch.LaunchSpec) -> "dict[str, str]":
    environment = launch.server_environment(spec, os.environ)
    # Programs beside the Python, such as ninja, are found as they are in its activated environment.
    environment["PATH"] = os.pathsep.join([str(spec.python.parent), environment.get("PATH", os.defpath)])
    if spec.cpu:
        shim = unpack_shim(folder)
        environment["PYTHONPATH"] = environment["PYTHONPATH"].replace(str(launch.CPU_SHIM), str(shim))
    return environment


def unpack_shim(folder: NodeFolder) -> Path:
    """Write the CPU engine's stand-ins, which SGLang's own processes import, out of the agent file."""
    inside = "auxtap/serving/cpu_shim/"
    archive = Path(__file__).resolve()
    while not archive.is_file():
        archive = archive.parent
    if not zipfile.is_zipfile(archive):
        return launch.CPU_SHIM
    shim = folder.root / "agent" / f"{archive.stem}-cpu"
    with zipfile.ZipFile(archive) as members:
        for name in members.namelist():
            if name.startswith(inside):
                publish_bytes(shim / name[len(inside) :], members.read(name))
    return shim


def server_status(folder: NodeFolder) -> "dict[str, Any]":
    """Say what is known of the server: none, starting, ready, dead, or dead with processes left."""
    record = read_record(folder.server_record)
    if record is None:
        return {"state": "none"}
    mark = ProcessMark.from_json(record["process"])
    members = [member.pid for member in session_members(mark)]
    facts = {**record, "pids": members}
    if is_alive(mark):
        ready = is_armed(Path(record["spool"])) and answers(record["url"])
        return {**facts, "state": "ready" if ready else "starting"}
    return {**facts, "state": "leftover" if members else "dead", "reason": _death(record)}


def _death(record: "Mapping[str, Any]") -> str:
    if record.get("stopped"):
        return "it was stopped"
    return ServerLog(Path(record["log"])).failure_reason()


def watch_server(folder: NodeFolder, arguments: "Mapping[str, Any]") -> "Iterator[dict[str, Any]]":
    """Tell of a server that starts, until it is ready or dead."""
    record = read_record(folder.server_record)
    if record is None:
        raise ServerError("no server was started on the node", hint="auxtap serve --node NAME")
    mark = ProcessMark.from_json(record["process"])
    watch = StartWatch(record["url"], Path(record["spool"]), ServerLog(Path(record["log"])))
    told = int(arguments["phases_told"])
    phases = 0
    next_beat = 0.0
    while True:
        alive = is_alive(mark)
        news = watch.look(is_alive=alive)
        for phase in news.phases:
            phases += 1
            if phases > told:
                yield {"phase": phase}
        if news.refusal is not None or not alive:
            reason = news.refusal or _death(record)
            yield {"dead": reason, "log": record["log"]}
            return
        if news.is_ready:
            yield {"ready": round(time.time() - record["started"], 1)}
            return
        if news.is_unarmed:
            yield {"dead": "the server is up but its tap is not armed", "log": record["log"]}
            return
        if time.monotonic() >= next_beat:
            next_beat = time.monotonic() + BEAT_S
            yield {"beat": True}
        time.sleep(POLL_S)


def stop_server(folder: NodeFolder) -> "dict[str, Any]":
    """Stop the server and whatever of it is left; again is harmless."""
    with folder.alone():
        record = read_record(folder.server_record)
        if record is None:
            return {"stopped": [], "left": []}
        mark = ProcessMark.from_json(record["process"])
        before = [member.pid for member in session_members(mark)]
        left = end_session(mark)
        kept = 0
        if not left:
            write_record(folder.server_record, mark, {**record, "stopped": True})
            kept = remove_spool(Path(record["spool"]))
        return {"stopped": [pid for pid in before if pid not in left], "left": left, "parts_left": kept}


def follow_log(path: Path, offset: int, *, follow: bool) -> "Iterator[dict[str, Any]]":
    """Give a log from `offset` on (negative: that many bytes before its end), and go on with what is added."""
    size = path.stat().st_size if path.is_file() else 0
    at = max(0, size + offset) if offset < 0 else offset
    next_beat = 0.0
    while True:
        data = b""
        if path.is_file():
            with path.open("rb") as file:
                file.seek(at)
                data = file.read(1 << 18)
        if data:
            at += len(data)
            yield {"text": data.decode(errors="replace"), "offset": at}
            continue
        if not follow:
            return
        if time.monotonic() >= next_beat:
            next_beat = time.monotonic() + BEAT_S
            yield {"beat": True}
        time.sleep(POLL_S)
