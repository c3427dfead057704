"""Put the agent together: one zip of the modules that run on the node, the same bytes every time."""

import functools
import importlib.resources
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from auxtap.core.files import sha256_bytes

# Folders (whole) and files of the package that the agent is made of.
_CONTENTS = (
    "__init__.py",
    "core",
    "extraction",
    "node/__init__.py",
    "node/agent",
    "serving/__init__.py",
    "serving/processes.py",
    "serving/profile.py",
    "serving/server.py",
    "serving/server_log.py",
    "serving/spool.py",
    "serving/cpu_shim",
    "tap/__init__.py",
    "tap/protocol.py",
)
_DATE = (2026, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class AgentFile:
    """The agent as it is sent."""

    data: bytes
    digest: str


@functools.cache
def build_agent() -> AgentFile:
    """Build the agent from the installed package."""
    root = Path(str(importlib.resources.files("auxtap")))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in agent_members(root):
            info = zipfile.ZipInfo(str(PurePosixPath("auxtap") / name), _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, (root / name).read_bytes())
    data = target.getvalue()
    return AgentFile(data, sha256_bytes(data))


def agent_members(root: Path) -> tuple[PurePosixPath, ...]:
    """Return the files of the agent, relative to the package, ascending."""
    found: set[PurePosixPath] = set()
    for entry in _CONTENTS:
        path = root / entry
        files = path.rglob("*.py") if path.is_dir() else [path]
        found |= {PurePosixPath(file.relative_to(root).as_posix()) for file in files}
    found |= {PurePosixPath(folder, "__init__.py") for folder in ("node", "serving", "tap")}
    return tuple(sorted(found))


@functools.cache
def launcher_text() -> str:
    """Return the program that the node's Python is given with `-c`."""
    path = Path(str(importlib.resources.files("auxtap.node.agent"))) / "launcher.py"
    return path.read_text() + "\n\nlaunch()\n"
