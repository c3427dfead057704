"""Judge what was found on a node, before it costs money: each line ok, warn or fail, with the remedy."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from auxtap.core.errors import AuxtapError
from auxtap.node.flags import final_flags
from auxtap.node.hardware import backend_problems
from auxtap.node.node_profile import NodeProfile
from auxtap.node.node_session import NodeSession
from auxtap.node.patch import NodeSource
from auxtap.node.remote_agent import Progress

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"
Verdict = Literal["ok", "warn", "fail"]
FACTS_TIMEOUT_S = 600.0
CLOCK_S = 5.0
ROOT_BYTES = 1 << 30
GIB = 1 << 30
# Weights and nothing else: beyond the first share they do not fit, beyond the second hardly anything else does.
WEIGHTS_FAIL, WEIGHTS_WARN = 0.94, 0.82
SLOW_COLLECTIVE_S = 1.0


@dataclass(frozen=True)
class CheckLine:
    """One line of `node check`; `remedy` is empty when it is ok."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def check_node(session: NodeSession, source: NodeSource, progress: Progress) -> tuple[CheckLine, ...]:
    """Look at everything that a run will need and judge it.

    Raises:
        AuxtapError: the agent itself fails.
    """
    profile = session.profile
    progress("looking at the node")
    asked = {
        "python": profile.python,
        "sglang": profile.sglang,
        "files": dict(source.files),
        "folders": {"spool": profile.storage.spool, "store": profile.storage.store, "root": profile.root},
        "port": profile.port,
        "model": profile.model_path,
    }
    facts = session.agent.call("facts", asked, timeout_s=FACTS_TIMEOUT_S)
    lines = [*_judge_access(session), *judge_facts(profile, source, facts)]
    n_gpus = len(facts["gpus"]["found"])
    ranks = _ranks(profile)
    cuda = not profile.cpu
    if ranks > 1 and (not cuda or n_gpus >= ranks) and "torch" in facts["python"]:
        progress(f"timing an all-reduce over {ranks} ranks, {profile.hardware.collective_timeout_s:.0f} s at most")
        answer = session.agent.call(
            "collective",
            {
                "python": profile.python,
                "ranks": ranks,
                "cuda": cuda,
                "timeout_s": profile.hardware.collective_timeout_s,
                "environment": dict(profile.environment),
            },
            timeout_s=profile.hardware.collective_timeout_s + 60.0,
        )
        lines.append(judge_collective(ranks, answer))
    elif ranks > 1:
        lines.append(CheckLine("all-reduce", WARN, "not tried: too few GPUs, or no torch", "mend those first"))
    else:
        lines.append(CheckLine("all-reduce", OK, "one rank needs none"))
    return tuple(lines)


def _judge_access(session: NodeSession) -> Iterator[CheckLine]:
    where = f"{session.user}@{session.host} answered after {session.connected_s:.1f} s"
    yield CheckLine("ssh", OK, where)
    off = session.clock_off_s
    if abs(off) > CLOCK_S:
        way = "ahead of" if off > 0 else "behind"
        detail = f"the node's clock is {abs(off):.0f} s {way} this machine's"
        yield CheckLine(
            "clock", WARN, detail, "times in ledger and logs will be wrong: start NTP (timedatectl set-ntp true)"
        )
    else:
        yield CheckLine("clock", OK, "agrees with this machine's")


def judge_facts(profile: NodeProfile, source: NodeSource, facts: Mapping[str, Any]) -> Iterator[CheckLine]:
    """Judge all that was found but for the all-reduce."""
    yield from _judge_python(profile, facts["python"])
    yield from _judge_sglang(source, facts["sglang"])
    yield from _judge_gpus(profile, facts["gpus"])
    yield from _judge_model(profile, facts["model"], facts["gpus"]["found"])
    yield from _judge_disks(profile, facts["disks"], facts["memory_bytes"])
    yield _judge_port(profile, facts["port"], facts["server"])
    yield from _judge_flags(profile, source, facts["gpus"]["found"])
    if facts["kills_on_logout"]:
        yield CheckLine("logout", FAIL, "logind ends this user's processes at logout", "loginctl enable-linger, once")


def _ranks(profile: NodeProfile) -> int:
    """Return the GPUs that the server takes; data parallelism within attention takes no more."""
    dp = 1 if "--enable-dp-attention" in profile.arguments else profile.parallel.dp
    return profile.parallel.tp * profile.parallel.pp * dp


def _judge_python(profile: NodeProfile, facts: Mapping[str, Any]) -> Iterator[CheckLine]:
    if "error" in facts:
        yield CheckLine("python", FAIL, f"{profile.python}: {facts['error']}", "see node.python")
        return
    version = facts["version"]
    old = tuple(int(part) for part in version.split(".")[:2]) < (3, 10)
    remedy = "SGLang and the agent need Python 3.10" if old else ""
    yield CheckLine("python", FAIL if old else OK, f"{version} ({profile.python})", remedy)
    torch = facts["torch"]
    if "error" in torch:
        yield CheckLine("torch", FAIL, torch["error"], "install the release's requirements into node.python")
    elif not profile.cpu and torch["gpus"] < _ranks(profile):
        detail = f"torch {torch['version']} (CUDA {torch['cuda']}) sees {torch['gpus']} GPUs of {_ranks(profile)}"
        yield CheckLine("torch", FAIL, detail, "does the driver fit this torch's CUDA? is CUDA_VISIBLE_DEVICES set?")
    else:
        yield CheckLine("torch", OK, f"torch {torch['version']}, {torch['gpus']} GPUs")


def _judge_sglang(source: NodeSource, facts: Mapping[str, Any]) -> Iterator[CheckLine]:
    if "error" in facts:
        yield CheckLine("sglang", FAIL, facts["error"], "node.sglang names a checkout or site-packages/sglang")
        return
    differing, release = facts["differing"], facts["release"]
    if not differing:
        yield CheckLine(
            "sglang", OK, f"{source.release}, {len(source.files):,} files equal to what the patch is made from"
        )
    else:
        stated = f"says it is {release}; " if release and release != source.release else ""
        named = ", ".join(differing[:3])
        detail = f"{stated}{len(differing):,} files are not those of {source.release}: {named}"
        yield CheckLine("sglang", FAIL, detail, f"check out v{source.release} and git status, or set node.patch_source")
    if facts.get("commit") is None:
        yield CheckLine("checkout", OK, f"no commit to report: {facts.get('why', '')}; files were compared instead")
    elif facts["dirty"]:
        detail = f"{facts['commit'][:12]} with local changes: {', '.join(facts['dirty'][:3])}"
        yield CheckLine("checkout", WARN if not differing else FAIL, detail, "git stash or commit them elsewhere")
    else:
        yield CheckLine("checkout", OK, f"{facts['commit'][:12]} {' '.join(facts['tags'])}, clean".replace("  ", " "))


def _judge_gpus(profile: NodeProfile, facts: Mapping[str, Any]) -> Iterator[CheckLine]:
    plan, found, ranks = profile.hardware, facts["found"], _ranks(profile)
    if profile.cpu:
        yield CheckLine("gpus", OK, "none are needed: node.cpu = true")
        return
    if len(found) < ranks:
        why = f" ({facts['why']})" if facts["why"] else ""
        yield CheckLine(
            "gpus", FAIL, f"{len(found)} of {ranks}{why}", "see nvidia-smi on the node, or parallel in the profile"
        )
        return
    first = found[0]
    alike = all((gpu["name"], gpu["capability"]) == (first["name"], first["capability"]) for gpu in found)
    memory_gib = first["memory_mib"] / 1024
    kind = f"{first['name']}, {memory_gib:.0f} GiB, compute capability {first['capability']}"
    detail = f"{len(found)}x {kind}, driver {first['driver']}"
    problems = []
    if not alike:
        problems.append("they are not all alike")
    if plan.gpu and plan.gpu.lower() not in first["name"].lower():
        problems.append(f"the profile was written for {plan.gpu}")
    if plan.compute_capability and plan.compute_capability != first["capability"]:
        problems.append(f"its flags are for compute capability {plan.compute_capability}")
    if plan.memory_gib and first["memory_mib"] < plan.memory_gib * 1024:
        problems.append(f"it plans with {plan.memory_gib} GiB each")
    remedy = (
        "use the starting point for this GPU (auxtap node new), and see hardware in the profile" if problems else ""
    )
    yield CheckLine("gpus", FAIL if problems else OK, "; ".join([detail, *problems]), remedy)
    busy = [gpu for gpu in found if gpu["used_mib"] > 1024]
    if busy:
        used = ", ".join(f"{gpu['index']}: {gpu['used_mib'] / 1024:.0f} GiB" for gpu in busy[:8])
        yield CheckLine("gpu memory", WARN, f"in use already: {used}", "nvidia-smi on the node shows by whom")


def _judge_model(profile: NodeProfile, facts: Mapping[str, Any], gpus: list[Mapping[str, Any]]) -> Iterator[CheckLine]:
    if "error" in facts:
        yield CheckLine("model", FAIL, facts["error"], "see model.path")
        return
    if facts["problems"]:
        named = "; ".join(facts["problems"][:3])
        yield CheckLine("model", FAIL, f"{len(facts['problems'])} files are not whole: {named}", "fetch them again")
    else:
        gib = facts["bytes"] / GIB
        yield CheckLine(
            "model", OK, f"{facts['architecture']}, {facts['depth']} blocks, {facts['shards']} files, {gib:.1f} GiB"
        )
    depth = facts["depth"]
    if profile.layers and depth is not None and max(profile.layers) >= depth:
        detail = f"model.layers names {max(profile.layers)}, and the model has {depth} blocks"
        yield CheckLine("layers", FAIL, detail, f"capture indices go from 1 to {depth - 1}")
    if gpus and not profile.cpu:
        share = facts["bytes"] / (profile.parallel.tp * profile.parallel.pp)
        memory = min(gpu["memory_mib"] for gpu in gpus) * (1 << 20)
        part = share / memory if memory else 1.0
        detail = f"{share / GIB:.0f} GiB of weights a GPU, {part:.0%} of its memory"
        verdict: Verdict = FAIL if part > WEIGHTS_FAIL else WARN if part > WEIGHTS_WARN else OK
        yield CheckLine(
            "weights", verdict, detail, "more GPUs (parallel.tp), or a smaller model" if verdict != OK else ""
        )


def _judge_disks(profile: NodeProfile, disks: Mapping[str, Any], memory: int) -> Iterator[CheckLine]:
    plan = profile.storage
    needs = {"spool": plan.spool_bytes, "store": plan.store_bytes, "root": ROOT_BYTES}
    for name, needed in needs.items():
        facts = disks[name]
        if "error" in facts:
            yield CheckLine(name, FAIL, f"{facts['path']}: {facts['error']}", f"see storage.{name}")
            continue
        free = facts["free_bytes"]
        detail = f"{facts['path']}: {free / GIB:.1f} GiB free of {facts['total_bytes'] / GIB:.1f}"
        if not facts["writable"]:
            yield CheckLine(name, FAIL, f"{facts['at']} is not writable", "name a folder of the node's user")
        elif needed and free < needed:
            yield CheckLine(name, FAIL, f"{detail}, {needed / GIB:.1f} GiB are planned", "make room, or plan with less")
        elif not needed and name != "root":
            yield CheckLine(
                name, WARN, f"{detail}; nothing is planned", f"set storage.{name}_bytes, and this is compared"
            )
        else:
            yield CheckLine(name, OK, f"{detail}, {needed / GIB:.1f} GiB planned")
    yield from _judge_pages(disks["spool"])
    spool, store = disks["spool"], disks["store"]
    if "error" not in spool and "error" not in store and spool["device"] == store["device"]:
        needed = plan.spool_bytes + plan.store_bytes
        if needed > spool["free_bytes"]:
            detail = f"they share one file system, with {spool['free_bytes'] / GIB:.1f} GiB for {needed / GIB:.1f}"
            yield CheckLine("spool and store", FAIL, detail, "put them on two, or plan with less")
    if plan.spool.startswith("/dev/shm/") and memory and plan.spool_bytes > memory:  # noqa: S108
        detail = f"shared memory is memory, and {memory / GIB:.1f} GiB of it are available"
        yield CheckLine("memory", FAIL, detail, "plan storage.spool_bytes below that")


def _judge_pages(spool: Mapping[str, Any]) -> Iterator[CheckLine]:
    """Say when the spool is memory in small pages, of which writing is dear (docs/benchmarks.md)."""
    mount = spool.get("mount", {})
    if mount.get("kind") != "tmpfs":
        return
    options = dict(option.partition("=")[::2] for option in mount["options"].split(","))
    if options.get("huge", "never") in ("never", "advise"):
        detail = f"{spool['at']} is memory in small pages: writing there takes about five times the CPU"
        yield CheckLine("spool pages", WARN, detail, "as root: mount -o remount,huge=within_size MOUNT")
    else:
        yield CheckLine("spool pages", OK, f"huge={options['huge']}")


def _judge_port(profile: NodeProfile, port: Mapping[str, Any], server: Mapping[str, Any]) -> CheckLine:
    if port["free"]:
        if server["state"] == "leftover":
            pids = ", ".join(map(str, server["pids"]))
            return CheckLine(
                "port",
                FAIL,
                f"the last server is dead, its processes {pids} are not",
                f"auxtap stop --node {profile.name}",
            )
        return CheckLine("port", OK, f"{profile.port} is free")
    if server["state"] in ("starting", "ready") and server["port"] == profile.port:
        return CheckLine(
            "port",
            WARN,
            f"our own server uses {profile.port} ({server['state']})",
            f"auxtap status --node {profile.name}",
        )
    detail = f"{profile.port} is in use by something that is not ours{port['owner']}"
    return CheckLine("port", FAIL, detail, "stop it there, or set another server.port")


def _judge_flags(profile: NodeProfile, source: NodeSource, gpus: list[Mapping[str, Any]]) -> Iterator[CheckLine]:
    try:
        flags = final_flags(profile, profile.model_path, source.needed, ())
    except AuxtapError as error:
        yield CheckLine("flags", FAIL, error.message, error.hint or "")
        return
    yield CheckLine("flags", OK, f"{len(flags.flags)} options; auxtap serve --node {profile.name} --explain shows them")
    options = {flag.option: flag.values[0] for flag in flags.flags if flag.values}
    capability = gpus[0]["capability"] if gpus else profile.hardware.compute_capability
    problems = () if profile.cpu else backend_problems(options, capability)
    if problems:
        yield CheckLine(
            "backends", FAIL, "; ".join(problems), "flashinfer or triton run on every architecture from SM80 on"
        )
    else:
        chosen = [
            f"{name} {options[name]}" for name in ("--attention-backend", "--moe-runner-backend") if name in options
        ]
        yield CheckLine("backends", OK, ", ".join(chosen) or "SGLang's own choice")


def judge_collective(ranks: int, facts: Mapping[str, Any]) -> CheckLine:
    """Judge the timed all-reduce."""
    if facts.get("hung"):
        detail = f"an all-reduce over {ranks} ranks hangs: no end within {facts['timeout_s']:.0f} s"
        remedy = (
            "on PCIe nodes set NCCL_P2P_LEVEL=SYS, or NCCL_P2P_DISABLE=1 with --disable-custom-all-reduce; "
            "is ACS off in the BIOS, is IOMMU in passthrough?"
        )
        return CheckLine("all-reduce", FAIL, detail, remedy)
    if "error" in facts:
        return CheckLine("all-reduce", FAIL, facts["error"], "NCCL_DEBUG=INFO in environment shows more")
    seconds = facts["seconds"]
    detail = f"{ranks} ranks, 4 MiB in {seconds * 1000:.1f} ms (with start {facts['whole_s']:.0f} s)"
    if seconds > SLOW_COLLECTIVE_S:
        return CheckLine("all-reduce", WARN, detail, "that is very slow: see NCCL_DEBUG=INFO for the transport chosen")
    return CheckLine("all-reduce", OK, detail)
