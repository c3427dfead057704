"""Look at the node: what it has, and whether its GPUs can speak to each other. Nothing is judged here."""

import ast
import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from auxtap.core.errors import AuxtapError
from auxtap.node.agent.node_folder import NodeFolder
from auxtap.node.agent.node_server import server_status
from auxtap.node.agent.node_tree import differing, digest_package, require_package
from auxtap.serving.processes import describe_listener, port_is_free
from auxtap.serving.profile import LOOPBACK

COMMAND_S = 30.0
TORCH_S = 180.0
MAX_HEADER_BYTES = 100 << 20
_GPU_FIELDS = ("index", "name", "memory.total", "memory.used", "driver_version", "compute_cap")
_TORCH = (
    "import json, torch; c = torch.cuda; ok = c.is_available(); "
    "n = c.device_count() if ok else 0; "
    "print(json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda, 'gpus': n}))"
)


def gather(folder: NodeFolder, asked: "Mapping[str, Any]") -> "dict[str, Any]":
    """Return all facts that `node check` judges."""
    return {
        "time": time.time(),
        "python": _python(asked["python"]),
        "sglang": _sglang(Path(asked["sglang"]), asked["files"]),
        "gpus": _gpus(),
        "disks": {name: _disk(Path(path)) for name, path in asked["folders"].items()},
        "port": {"free": port_is_free(LOOPBACK, asked["port"]), "owner": describe_listener(asked["port"])},
        "server": server_status(folder),
        "model": look_at_model(Path(asked["model"])),
        "kills_on_logout": _kills_on_logout(),
        "memory_bytes": _memory(),
    }


def _run(command: "list[str]", timeout_s: float) -> "tuple[int, str, str]":
    """Run a command in a session of its own and end that whole session at the deadline."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return 127, "", f"{command[0]}: {error.strerror}"
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return 124, "", f"no answer within {timeout_s:g} s"
    return process.returncode, stdout, stderr


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else ""


def _python(python: str) -> "dict[str, Any]":
    status, out, said = _run([python, "-I", "-c", "import platform; print(platform.python_version())"], COMMAND_S)
    if status != 0:
        return {"error": _last(said) or f"status {status}"}
    facts: dict[str, Any] = {"version": out.strip()}
    status, out, said = _run([python, "-I", "-c", _TORCH], TORCH_S)
    try:
        facts["torch"] = json.loads(out)
    except ValueError:
        facts["torch"] = {"error": _last(said) or f"status {status}"}
    return facts


def _sglang(source: Path, files: "Mapping[str, str]") -> "dict[str, Any]":
    try:
        package = require_package(source)
    except AuxtapError as error:
        return {"error": error.message}
    facts: dict[str, Any] = {"package": str(package), "release": _release(package)}
    if files:
        facts["differing"] = differing(digest_package(package), files)
    facts.update(_git(source))
    return facts


def _release(package: Path) -> "str | None":
    """Return the release that the package's own version file states."""
    for name in ("_version.py", "version.py"):
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            for node in ast.parse((package / name).read_bytes()).body:
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                    names = {target.id for target in node.targets if isinstance(target, ast.Name)}
                    if names & {"__version__", "version"} and isinstance(node.value.value, str):
                        return node.value.value
    return None


def _git(source: Path) -> "dict[str, Any]":
    if not (source / ".git").exists():
        return {"commit": None, "why": "it is no git checkout"}
    if shutil.which("git") is None:
        return {"commit": None, "why": "the node has no git"}
    safe = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(source)]
    status, out, said = _run([*safe, "rev-parse", "--verify", "HEAD"], COMMAND_S)
    if status != 0:
        return {"commit": None, "why": _last(said)}
    commit = out.strip()
    _, out, _ = _run([*safe, "status", "--porcelain", "--", "python/sglang"], COMMAND_S)
    _, tags, _ = _run([*safe, "tag", "--points-at", "HEAD"], COMMAND_S)
    return {"commit": commit, "dirty": [line[3:] for line in out.splitlines()][:20], "tags": tags.split()[:5]}


def _gpus() -> "dict[str, Any]":
    query = ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    status, out, said = _run(query, COMMAND_S)
    if status != 0:
        return {"found": [], "why": _last(said or out) or f"nvidia-smi ended with status {status}"}
    found = []
    for line in out.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == len(_GPU_FIELDS):
            index, name, total, used, driver, capability = fields
            found.append({
                "index": index, "name": name, "memory_mib": _number(total), "used_mib": _number(used),
                "driver": driver, "capability": capability,
            })  # fmt: skip
    return {"found": found, "why": "" if found else "nvidia-smi lists none"}


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _disk(path: Path) -> "dict[str, Any]":
    """Return what is free where `path` is or would be, and whether it could be written."""
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        status = os.statvfs(existing)
    except OSError as error:
        return {"path": str(path), "error": error.strerror}
    return {
        "path": str(path),
        "exists": path.exists(),
        "writable": os.access(existing, os.W_OK | os.X_OK),
        "at": str(existing),
        "free_bytes": status.f_bavail * status.f_frsize,
        "total_bytes": status.f_blocks * status.f_frsize,
        "device": existing.stat().st_dev,
        "mount": _mount(existing.stat().st_dev),
    }


def _mount(device: int) -> "dict[str, str]":
    """Return the kind and the options of the file system on a device, empty when it cannot be seen."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            if before.split()[2] == wanted:
                kind, _, options = after.split()[:3]
                return {"kind": kind, "options": options}
    return {}


def look_at_model(model: Path) -> "dict[str, Any]":
    """Return a model's depth and what is missing or cut short of its files."""
    try:
        config = json.loads((model / "config.json").read_bytes())
    except FileNotFoundError:
        return {"error": f"{model} holds no config.json" if model.is_dir() else f"there is no folder {model}"}
    except (OSError, ValueError) as error:
        return {"error": f"{model}/config.json cannot be read: {error}"}
    depth = None
    for part in (config.get("text_config"), config):
        value = part.get("num_hidden_layers") if isinstance(part, dict) else None
        if type(value) is int:
            depth = value
            break
    shards, problems = _shards(model)
    n_bytes = sum((model / name).stat().st_size for name in shards if (model / name).is_file())
    architectures = config.get("architectures") or [""]
    return {"depth": depth, "architecture": str(architectures[0]), "shards": len(shards), "bytes": n_bytes,
            "problems": problems}  # fmt: skip


def _shards(model: Path) -> "tuple[list[str], list[str]]":
    index = model / "model.safetensors.index.json"
    if not index.is_file():
        names = sorted(path.name for path in model.glob("*.safetensors"))
        problems = [] if names else ["there are no safetensors files"]
    else:
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            return [], [f"{index.name} cannot be read: {error!r}"]
        problems = []
    for name in names:
        problem = _shard_problem(model / name)
        if problem is not None:
            problems.append(f"{name} {problem}")
    return names, problems


def _shard_problem(path: Path) -> "str | None":
    """Say what is wrong with a safetensors file by its header and size; the weights are not read."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else MAX_HEADER_BYTES + 1
            if length > MAX_HEADER_BYTES or 8 + length > size:
                return "is cut short or no safetensors file"
            header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, IndexError):
        return "has an unreadable header"
    wanted = 8 + length + max(ends, default=0)
    return None if size == wanted else f"has {size:,} bytes of {wanted:,}"


def _kills_on_logout() -> bool:
    """Tell whether logind ends a user's processes at logout and this user does not linger."""
    with contextlib.suppress(OSError):
        text = Path("/etc/systemd/logind.conf").read_text()
        if any(line.strip().lower() == "killuserprocesses=yes" for line in text.splitlines()):
            return not Path("/var/lib/systemd/linger", os.environ.get("USER", "")).is_file()
    return False


def _memory() -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


_COLLECTIVE = """
import datetime, os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, size, store, cuda):
    if cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if cuda else "gloo", init_method="file://" + store, rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=600))
    values = torch.ones(1 << 20, device=f"cuda:{rank}" if cuda else "cpu")
    for _ in range(3):
        began = time.monotonic()
        values.fill_(1.0)
        dist.all_reduce(values)
        total = float(values.sum())
    seconds = time.monotonic() - began
    if total != float(size * (1 << 20)):
        sys.exit(f"rank {rank}: the sum is {total}")
    if rank == 0:
        print(f"COLLECTIVE {seconds:.6f}", flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    size, store, cuda = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "cuda"
    mp.spawn(work, (size, store, cuda), nprocs=size)
"""


def time_collective(folder: NodeFolder, asked: "Mapping[str, Any]") -> "dict[str, Any]":
    """Time a small all-reduce over all ranks, with the profile's own environment, and end it at the deadline."""
    work = folder.root / "collective"
    with folder.alone():
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o700, parents=True)
        script = work / "collective.py"
        script.write_text(_COLLECTIVE)
        kind = "cuda" if asked["cuda"] else "cpu"
        command = [asked["python"], "-s", str(script), str(asked["ranks"]), str(work / "meeting"), kind]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **asked["environment"]}
        pairs = [f"{name}={value}" for name, value in environment.items()]
        began = time.monotonic()
        status, out, said = _run(["/usr/bin/env", "-i", *pairs, *command], asked["timeout_s"])
        shutil.rmtree(work, ignore_errors=True)
    took = [line.split()[1] for line in out.splitlines() if line.startswith("COLLECTIVE ")]
    if status == 124:
        return {"hung": True, "timeout_s": asked["timeout_s"]}
    if status != 0 or not took:
        return {"error": _last(said) or f"status {status}"}
    return {"seconds": float(took[0]), "whole_s": round(time.monotonic() - began, 1)}
