"""The pinned packages that serve a release on a CPU."""

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from auxtap.core.errors import ServerError
from auxtap.core.files import sha256_bytes

# Release -> the lock whose packages serve it.
LOCK_OF_RELEASE: Mapping[str, str] = {
    **dict.fromkeys(("0.4.5", "0.4.9.post6", "0.5.5.post3"), "sglang-0.5.9"),
    **dict.fromkeys(("0.5.6", "0.5.6.post1", "0.5.6.post2", "0.5.7", "0.5.8", "0.5.8.post1", "0.5.9"), "sglang-0.5.9"),
    **dict.fromkeys(("0.5.10", "0.5.10.post1"), "sglang-0.5.10"),
    **dict.fromkeys(("0.5.11", "0.5.12", "0.5.12.post1"), "sglang-0.5.12"),
    **dict.fromkeys(("0.5.13", "0.5.13.post1", "0.5.14"), "sglang-0.5.14"),
    **dict.fromkeys(
        ("0.5.15", "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21"), "sglang-0.5.17"
    ),
    **dict.fromkeys(("0.5.22", "0.5.23"), "sglang-0.5.23"),
}
FIRST_PACKAGE = "torch"


@dataclass(frozen=True)
class EngineLock:
    """The pinned packages of an environment; `requirements` in file order, `name==version` each."""

    name: str
    path: Path
    requirements: tuple[str, ...]
    digest: str

    @property
    def first(self) -> tuple[str, ...]:
        """The requirement that is installed first, with what it depends on."""
        return tuple(r for r in self.requirements if r.partition("==")[0] == FIRST_PACKAGE)


def lock_of_release(release: str) -> EngineLock:
    """Return the lock that serves `release`.

    Raises:
        ServerError: there is none.
    """
    name = LOCK_OF_RELEASE.get(release)
    if name is None:
        known = ", ".join(LOCK_OF_RELEASE)
        raise ServerError(f"no engine environment is known for SGLang {release}", hint=f"there is one for {known}")
    folder = Path(str(importlib.resources.files("auxtap.serving"))) / "engine_locks"
    return read_lock(folder / f"{name}.txt")


def read_lock(path: Path) -> EngineLock:
    """Read a lock file: comments, and exact pins.

    Raises:
        ServerError: it is missing, or a line is no pin.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ServerError(
            f"cannot read the engine lock {path}: {error.strerror or error}",
            hint="install auxtap again: a file of it is missing",
        ) from None
    lines = [line.strip() for line in data.decode().splitlines()]
    requirements = tuple(line for line in lines if line and not line.startswith("#"))
    for requirement in requirements:
        if "==" not in requirement:
            raise ServerError(f"{path}: {requirement!r} is not pinned with ==")
    return EngineLock(path.stem, path, requirements, sha256_bytes(data))
