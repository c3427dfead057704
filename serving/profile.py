"""Say exactly how a server is launched: its command line and its environment, as data."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from auxtap.core.errors import UsageError
from auxtap.core.hazards.arguments import find_refusal, may_stand_for, split_options
from auxtap.core.release import release_key
from auxtap.tap.protocol import (
    ENV_FINAL,
    ENV_LAYERS,
    ENV_PATCH_DIGEST,
    ENV_RELEASE,
    ENV_SOURCE_DIGEST,
    ENV_SPOOL,
    FINAL_TENSORS,
    POST_NORM,
)

CPU_SHIM = Path(__file__).resolve().parent / "cpu_shim"
LOOPBACK = "127.0.0.1"
# Which final states a server gives: after the final norm, before it, or both.
FINAL_STATES = tuple(FINAL_TENSORS)
# What the plugin reads.
ENV_PATCH = "AUXTAP_PATCH"
ENV_CPU_SHIM = "AUXTAP_CPU_SHIM"

NO_RADIX_CACHE = "--disable-radix-cache"
NO_WARMUP = "--skip-server-warmup"
CAPTURE_ARGUMENTS = (NO_RADIX_CACHE, NO_WARMUP)
CPU_ARGUMENTS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"),
    *("--disable-overlap-schedule", "--max-total-tokens", "4096", "--mem-fraction-static", "0.1"),
)
CPU_ENVIRONMENT = {
    ENV_CPU_SHIM: "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

ENV_BINDING = "SGLANG_CPU_OMP_THREADS_BIND"
_NUMA = Path("python/sglang/srt/utils/numa_utils.py")
# The parameter of `init_threads_binding` from 0.5.19 on; before it is `tp_size`.
_ALL_RANKS = b"world_size: int"
_SIZES = {
    **dict.fromkeys(("--tp", "--tp-size", "--tensor-parallel-size"), "tp"),
    **dict.fromkeys(("--pp", "--pp-size", "--pipeline-parallel-size"), "pp"),
    **dict.fromkeys(("--dp", "--dp-size", "--data-parallel-size"), "dp"),
}

_OWNED = "auxtap serve sets it itself"
_NO_HTTP = "auxtap extract talks HTTP"
# Options that are no hazard to states, and that a server of ours cannot be given all the same -> why.
_KEPT: Mapping[str, str] = {
    "--model-path": _OWNED,
    "--model": _OWNED,
    "--host": _OWNED,
    "--port": _OWNED,
    "--config": "options in a file cannot be checked here; give them after --",
    "--grpc-mode": _NO_HTTP,
    "--smg-grpc-mode": _NO_HTTP,
}


@dataclass(frozen=True)
class LaunchSpec:
    """One server to be launched; nothing in it is started, opened or made.

    `tree` is the root of the patched tree (it holds `python/sglang`); None serves the SGLang that `python` has.
    Without `spool` the server runs untapped. `plugin` is a folder that makes auxtap's plugin known to an unpatched
    SGLang (`plugin_home.make_plugin_home`), `plugin_patch` the folder of the patch that it is to use.
    `layers` are capture indices, `final` is one of `FINAL_STATES`. `required_arguments` are those that the patch of
    the tree asks for. `cpu` chooses the CPU engine's options and stand-ins. `radix_cache` leaves the prefix cache on,
    which is safe only for prompts that each come under a key of their own.
    """

    python: Path
    tree: Path | None
    model_path: str
    port: int
    log: Path
    bytecode: Path
    spool: Path | None = None
    layers: tuple[int, ...] = ()
    final: str = POST_NORM
    cpu: bool = False
    radix_cache: bool = False
    host: str = LOOPBACK
    release: str = ""
    patch_digest: str = ""
    source_digest: str = ""
    required_arguments: tuple[str, ...] = ()
    extra_arguments: tuple[str, ...] = ()
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    plugin: Path | None = None
    plugin_patch: Path | None = None

    @property
    def url(self) -> str:
        """Where the server listens."""
        host = LOOPBACK if self.host in ("0.0.0.0", "::", "") else self.host  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


@dataclass(frozen=True)
class Launch:
    """A command line and the whole environment it runs in."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


def build_launch(spec: LaunchSpec, environment: Mapping[str, str] | None = None) -> Launch:
    """Build what starts the server of `spec`, on top of `environment` (default: this process's).

    Raises:
        UsageError: an extra argument is one the capture cannot live with.
    """
    inherited = os.environ if environment is None else environment
    return Launch(
        argv=(str(spec.python), "-m", "sglang.launch_server", *server_arguments(spec)),
        environment=server_environment(spec, inherited),
    )


def server_arguments(spec: LaunchSpec) -> tuple[str, ...]:
    """Return SGLang's arguments: ours first, the person's last, so that theirs win.

    Raises:
        UsageError: an extra argument is one the capture cannot live with.
    """
    check_extra_arguments(spec.extra_arguments, spec.final)
    ours = ("--model-path", spec.model_path, "--host", spec.host, "--port", str(spec.port))
    cpu = CPU_ARGUMENTS if spec.cpu else ()
    capture = dict.fromkeys((*CAPTURE_ARGUMENTS, *spec.required_arguments))
    if not skips_warmup(spec.release):
        del capture[NO_WARMUP]
    if spec.radix_cache:
        del capture[NO_RADIX_CACHE]
    return (*ours, *capture, *cpu, *spec.extra_arguments)


def server_environment(spec: LaunchSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the server's environment: bytecode cached outside the tree, our variables, no other tap's."""
    kept = {name: value for name, value in inherited.items() if not name.startswith("AUXTAP_")}
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONSAFEPATH"):
        kept.pop(name, None)
    path = [str(CPU_SHIM)] if spec.cpu else []
    if spec.plugin is not None:
        path.append(str(spec.plugin))
    if spec.tree is not None:
        path.append(str(spec.tree / "python"))
    if not spec.cpu and kept.get("PYTHONPATH"):
        path.append(kept["PYTHONPATH"])
    if path:
        kept["PYTHONPATH"] = os.pathsep.join(path)
    kept["PYTHONPYCACHEPREFIX"] = str(spec.bytecode)
    kept["PYTHONUNBUFFERED"] = "1"
    # AUXTAP_MAX_PENDING_BYTES, AUXTAP_MAX_WAIT_S: the person's to choose.
    kept.update({name: value for name, value in inherited.items() if name.startswith("AUXTAP_MAX_")})
    if spec.cpu:
        kept.update(CPU_ENVIRONMENT)
        kept.update(cpu_binding(spec.extra_arguments, spec.tree))
    if spec.spool is not None:
        kept.update(tap_environment(spec, spec.spool))
    kept.update(spec.extra_environment)
    return kept


def tap_environment(spec: LaunchSpec, spool: Path) -> dict[str, str]:
    """Return the variables that switch the tap on."""
    values = {
        ENV_SPOOL: str(spool),
        ENV_LAYERS: ",".join(str(layer) for layer in spec.layers),
        ENV_FINAL: "" if spec.final == POST_NORM else spec.final,
        ENV_RELEASE: spec.release,
        ENV_PATCH_DIGEST: spec.patch_digest,
        ENV_SOURCE_DIGEST: spec.source_digest,
        ENV_PATCH: "" if spec.plugin_patch is None else str(spec.plugin_patch),
    }
    return {name: value for name, value in values.items() if value}


def cpu_binding(arguments: Sequence[str], tree: Path | None) -> dict[str, str]:
    """Return the CPU binding that SGLang wants when there are more ranks than NUMA nodes: one part a rank.

    Ranks are those of tensor parallelism, in later releases (`utils/numa_utils.py`) those of all parallelism.
    """
    sizes = {"tp": 1, "pp": 1, "dp": 1}
    for option in split_options(arguments):
        kind = _SIZES.get(option.name)
        if kind is not None and option.value is not None and option.value.isdigit():
            sizes[kind] = int(option.value)
    n_ranks = sizes["tp"]
    if tree is not None and _binds_every_rank(tree):
        n_ranks *= sizes["pp"] * sizes["dp"]
    if n_ranks == 1:
        return {}
    cpus = sorted(os.sched_getaffinity(0))
    return {ENV_BINDING: "|".join(str(cpus[rank % len(cpus)]) for rank in range(n_ranks))}


def skips_warmup(release: str) -> bool:
    """Tell whether `release` can be asked not to warm up; one of no known number can.

    The switch is there from 0.4.9 on, but up to 0.4.10.post1 a server that was sent no request yet never answers
    `/get_server_info` (`TokenizerManager.get_internal_state` starts no handle loop, and `/health` sends none). The
    request that a server sends itself is none that the tap heeds.
    """
    try:
        return release_key(release) >= (0, 4, 10, 2)
    except ValueError:
        return True


def _binds_every_rank(tree: Path) -> bool:
    try:
        text = (tree / _NUMA).read_bytes()
    except OSError:
        return False
    return ENV_BINDING.encode() in text and _ALL_RANKS in text


def check_extra_arguments(arguments: Sequence[str], final: str = POST_NORM) -> None:
    """Refuse what the capture cannot live with, however it is written; `final` is one of `FINAL_STATES`.

    Raises:
        UsageError: an option is kept for ourselves, or the arguments bring a hazard about.
    """
    for option in split_options(arguments):
        kept = next((name for name in _KEPT if may_stand_for(option.name, name)), None)
        if kept is not None:
            raise UsageError(f"server argument {option.name} is refused: {_KEPT[kept]}", hint="leave it out after --")
    refusal = find_refusal(arguments, prenorm=final != POST_NORM)
    if refusal is not None:
        raise UsageError(f"server argument {refusal.words}", hint="leave it out after --")


def model_depth(model_path: str) -> int | None:
    """Return the number of decoder blocks that a local model's `config.json` states, None when there is none."""
    try:
        config = json.loads((Path(model_path) / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    for part in (config.get("text_config"), config):
        depth = part.get("num_hidden_layers") if isinstance(part, dict) else None
        if type(depth) is int:
            return depth
    return None


def default_layers(n_blocks: int) -> tuple[int, ...]:
    """Return EAGLE-3's low, middle and high state as capture indices: 3, 31, 59 of 61 blocks."""
    layers = {3, n_blocks // 2 + 1, n_blocks - 2}
    return tuple(sorted(layer for layer in layers if 1 <= layer < n_blocks)) or (1,)
