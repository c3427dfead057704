"""A node's profile: one TOML file that says how a node is reached, what it has, and what is to run on it."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from auxtap.core.errors import UsageError
from auxtap.node.toml_table import Table
from auxtap.serving.profile import FINAL_STATES

PLACEHOLDER = "CHANGE-ME"
_HOST = re.compile(r"[A-Za-z0-9_.@:%\[\]-]+")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SECRET = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|API_KEY|CREDENTIAL", re.IGNORECASE)


@dataclass(frozen=True)
class SshSettings:
    """How the node is reached: `host` is anything that OpenSSH understands."""

    host: str
    config: Path | None = None
    connect_timeout_s: float = 15.0


@dataclass(frozen=True)
class Parallelism:
    """Tensor, pipeline and data parallel sizes."""

    tp: int = 1
    pp: int = 1
    dp: int = 1


@dataclass(frozen=True)
class StoragePlan:
    """Folders on the node and what a run will need of them; 0 bytes when nothing was planned."""

    spool: str
    store: str
    spool_bytes: int = 0
    store_bytes: int = 0


@dataclass(frozen=True)
class HardwarePlan:
    """The GPUs that the profile was written for; empty or 0 where nothing is expected."""

    gpu: str = ""
    count: int = 0
    memory_gib: int = 0
    compute_capability: str = ""
    collective_timeout_s: float = 60.0


@dataclass(frozen=True)
class NodeProfile:
    """One node; paths that begin with `~/` are below the node user's home.

    `patch_source` is what the patch is made from, on the workstation: the same SGLang as the node's `sglang`.
    """

    name: str
    path: Path
    description: str
    ssh: SshSettings
    root: str
    python: str
    sglang: str
    patch_source: str
    cpu: bool
    model_path: str
    layers: tuple[int, ...]
    final: str
    parallel: Parallelism
    port: int
    arguments: tuple[str, ...]
    ready_timeout_s: float
    storage: StoragePlan
    hardware: HardwarePlan
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)


def read_profile(path: Path) -> NodeProfile:
    """Read and check a profile.

    Raises:
        UsageError: it cannot be read, or a key of it is unknown, missing or of the wrong kind.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read profile {path}: {error.strerror}", hint="auxtap node new NAME --from START makes one"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8", hint="save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path} is no TOML: {error}", hint="auxtap node new NAME --from START begins one that is"
        ) from None
    return _read(path, Table(str(path), "", values))


def _read(path: Path, top: Table) -> NodeProfile:
    description = top.text("description", " ").strip()
    ssh, node, model, parallel = (top.table(name) for name in ("ssh", "node", "model", "parallel"))
    server, storage, hardware = (top.table(name) for name in ("server", "storage", "hardware"))
    profile = NodeProfile(
        name=path.stem,
        path=path,
        description=description,
        ssh=_read_ssh(ssh),
        root=_read_folder(node, "root", "~/.auxtap-node"),
        python=_read_folder(node, "python"),
        sglang=_read_folder(node, "sglang"),
        patch_source=node.text("patch_source", "pypi:0.5.9"),
        cpu=node.flag("cpu", False),
        model_path=_read_folder(model, "path"),
        layers=_read_layers(model),
        final=_read_final(model),
        parallel=Parallelism(*(parallel.number(size, 1, 1, 1024) for size in ("tp", "pp", "dp"))),
        port=server.number("port", 30000, 1024, 65535),
        arguments=server.texts("arguments"),
        ready_timeout_s=server.seconds("ready_timeout_s", 3600.0),
        storage=StoragePlan(
            spool=_read_folder(storage, "spool"),
            store=_read_folder(storage, "store"),
            spool_bytes=_read_size(storage, "spool_bytes"),
            store_bytes=_read_size(storage, "store_bytes"),
        ),
        hardware=HardwarePlan(
            gpu=hardware.text("gpu", " ").strip(),
            count=hardware.number("count", 0, 0, 1024),
            memory_gib=hardware.number("memory_gib", 0, 0, 100_000),
            compute_capability=hardware.text("compute_capability", " ").strip(),
            collective_timeout_s=hardware.seconds("collective_timeout_s", 60.0),
        ),
        environment=_read_environment(top),
    )
    for table in (ssh, node, model, parallel, server, storage, hardware, top):
        table.close()
    return profile


def _read_ssh(table: Table) -> SshSettings:
    host = table.text("host")
    if host == PLACEHOLDER:
        raise table.error("host", "is still the starting point's", "name your node, as you would after `ssh `")
    # A name that begins with a dash would be an option; anything else that a shell or ssh could misread goes too.
    if host.startswith("-") or _HOST.fullmatch(host) is None:
        raise table.error(
            "host", f"is {host!r}, no host name", "an alias of ~/.ssh/config carries user, port and jumps"
        )
    config = table.optional_text("config")
    return SshSettings(
        host=host,
        config=Path(config).expanduser() if config else None,
        connect_timeout_s=table.seconds("connect_timeout_s", 15.0, 600.0),
    )


def _read_folder(table: Table, key: str, default: str | None = None) -> str:
    """Return a path on the node: absolute, or below its user's home."""
    value = table.text(key, default)
    if PLACEHOLDER in value:
        raise table.error(key, "is still the starting point's", "name the path on your node")
    if not value.startswith(("/", "~/")) or ".." in PurePosixPath(value).parts:
        raise table.error(key, f"is {value!r}, not an absolute path", "begin it with / or ~/")
    return value.rstrip("/") or "/"


def _read_layers(table: Table) -> tuple[int, ...]:
    layers = table.numbers("layers")
    if list(layers) != sorted({layer for layer in layers if layer > 0}):
        raise table.error("layers", f"is {list(layers)}, not ascending capture indices from 1 on")
    return layers


def _read_final(table: Table) -> str:
    final = table.text("final", FINAL_STATES[0])
    if final not in FINAL_STATES:
        raise table.error("final", f"is {final!r}", f"one of {', '.join(FINAL_STATES)}")
    return final


def _read_size(table: Table, key: str) -> int:
    text = table.optional_text(key)
    if text is None:
        return 0
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise table.error(key, f"is {text!r}, no size", "such as 200G or 1.5TiB")
    unit = (match[2] or "").lower().removesuffix("i")
    return int(float(match[1]) * 1024 ** _EXPONENTS[unit])


def _read_environment(top: Table) -> dict[str, str]:
    variables = top.environment("environment")
    for name in variables:
        if name.startswith("AUXTAP_") and not name.startswith("AUXTAP_MAX_"):
            raise top.error(f"environment.{name}", "is set by auxtap itself")
        if _SECRET.search(name):
            raise top.error(
                f"environment.{name}",
                "looks like a secret, and a profile is no place for one",
                "set it on the node, in the environment of its login shell",
            )
    return variables
