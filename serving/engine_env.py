"""Make and find the Python environments in which SGLang serves on a CPU."""

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from auxtap.core.cache import CacheLayout
from auxtap.core.errors import ServerError
from auxtap.core.files import held_lock, publish_json
from auxtap.serving.engine_lock import EngineLock, lock_of_release
from auxtap.serving.pip import Pip, pip_environment
from auxtap.serving.server import Progress, be_silent

MARKER = "auxtap-engine.json"
SETUP_LOG = "auxtap-setup.log"
MIN_PYTHON = (3, 11)


@dataclass(frozen=True)
class EngineMarker:
    """Written last: an environment with a fitting marker is whole."""

    lock: str
    lock_digest: str
    python: str
    packages: int


@dataclass(frozen=True)
class EngineEnvironment:
    """An environment that is whole, and whether this call had to do something for it."""

    release: str
    folder: Path
    python: Path
    python_version: str
    lock: EngineLock
    changed: bool


def engine_folder(cache: CacheLayout, lock: EngineLock, python_version: str) -> Path:
    """Return where the environment of a lock and a Python (3.11.7) lies."""
    minor = ".".join(python_version.split(".")[:2])
    return cache.engines / f"{lock.name}-py{minor}"


def find_engine(release: str, cache: CacheLayout, python: Path | None = None) -> EngineEnvironment | None:
    """Return the environment of `release` when it is whole, None otherwise; nothing is changed.

    Raises:
        ServerError: the release has no lock, or `python` cannot be run.
    """
    lock = lock_of_release(release)
    version = python_version(python or Path(sys.executable))
    folder = engine_folder(cache, lock, version)
    if not is_whole(folder, lock, version):
        return None
    return EngineEnvironment(release, folder, folder / "bin" / "python", version, lock, changed=False)


def set_up_engine(
    release: str,
    cache: CacheLayout,
    *,
    python: Path | None = None,
    torch_index: str | None = None,
    rebuild: bool = False,
    progress: Progress = be_silent,
) -> EngineEnvironment:
    """Make, repair or just find the environment of `release`.

    `python` makes the environment (default: the running one), `torch_index` is the package index torch comes from
    (default: pip's own configuration), `rebuild` begins from nothing.

    Raises:
        ServerError: the release has no lock, Python is too old, or pip fails (the requirement is named).
    """
    return install_lock(
        release,
        lock_of_release(release),
        cache,
        python=python,
        torch_index=torch_index,
        rebuild=rebuild,
        progress=progress,
    )


def install_lock(
    release: str,
    lock: EngineLock,
    cache: CacheLayout,
    *,
    python: Path | None = None,
    torch_index: str | None = None,
    rebuild: bool = False,
    progress: Progress = be_silent,
) -> EngineEnvironment:
    """Make the environment of `lock`; see `set_up_engine`."""
    base = python or Path(sys.executable)
    version = python_version(base)
    folder = engine_folder(cache, lock, version)
    engine = EngineEnvironment(release, folder, folder / "bin" / "python", version, lock, changed=False)
    if not rebuild and is_whole(folder, lock, version):
        return engine
    lock_path = folder.with_name(f".{folder.name}.lock")
    try:
        with held_lock(lock_path, wait=False):
            return _install(engine, base, torch_index, rebuild, progress)
    except BlockingIOError:
        progress("another set-up of this environment is running: waiting for it")
        with held_lock(lock_path):
            return _install(engine, base, torch_index, rebuild, progress)


def _install(
    engine: EngineEnvironment, base: Path, torch_index: str | None, rebuild: bool, progress: Progress
) -> EngineEnvironment:
    folder, lock = engine.folder, engine.lock
    if not rebuild and is_whole(folder, lock, engine.python_version):
        return engine
    if rebuild or not _runs(engine.python):
        progress(f"making {folder}")
        _make_venv(base, folder)
    (folder / MARKER).unlink(missing_ok=True)
    pip = Pip(engine.python, folder / SETUP_LOG, progress)
    if lock.first:
        index = ["--index-url", torch_index] if torch_index else []
        pip.install([*lock.first, *index, "--constraint", str(lock.path)], lock.first)
    if lock.requirements:
        pip.install(["--no-deps", "--requirement", str(lock.path)], lock.requirements)
    _check_installed(engine.python, lock)
    marker = EngineMarker(lock.name, lock.digest, engine.python_version, len(lock.requirements))
    publish_json(folder / MARKER, asdict(marker))
    return EngineEnvironment(engine.release, folder, engine.python, engine.python_version, lock, changed=True)


def is_whole(folder: Path, lock: EngineLock, version: str) -> bool:
    """Tell whether the environment in `folder` was finished for this lock and Python, and still runs."""
    try:
        marker = json.loads((folder / MARKER).read_bytes())
    except (OSError, ValueError):
        return False
    fits = marker == asdict(EngineMarker(lock.name, lock.digest, version, len(lock.requirements)))
    return fits and _runs(folder / "bin" / "python")


def python_version(python: Path) -> str:
    """Return the version (3.11.7) of a Python.

    Raises:
        ServerError: it cannot be run, or is older than `MIN_PYTHON`.
    """
    program = "import platform; print(platform.python_version())"
    try:
        answer = subprocess.run(
            [str(python), "-I", "-c", program], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerError(f"cannot run {python}: {error}", hint="name a Python with --python") from None
    version = answer.stdout.strip()
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_PYTHON:
        wanted = ".".join(str(part) for part in MIN_PYTHON)
        raise ServerError(
            f"{python} is Python {version}; {wanted} or newer is needed", hint="name another with --python"
        )
    return version


def _runs(python: Path) -> bool:
    try:
        return subprocess.run([str(python), "-I", "-c", ""], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _make_venv(base: Path, folder: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = subprocess.run([str(base), "-m", "venv", str(folder)], capture_output=True, text=True, env=pip_environment())
    if made.returncode != 0 or not _runs(folder / "bin" / "python"):
        reason = (made.stdout + made.stderr).strip().splitlines()
        raise ServerError(
            f"{base} cannot make a virtual environment: {reason[-1] if reason else 'no reason given'}",
            hint="on Debian and Ubuntu install python3-venv, or name another Python with --python",
        )


def _check_installed(python: Path, lock: EngineLock) -> None:
    program = (
        "import importlib.metadata as m, json, sys\n"
        "found = {}\n"
        "for name in json.load(sys.stdin):\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))\n"
    )
    pins = dict(requirement.split("==", 1) for requirement in lock.requirements)
    answer = subprocess.run(
        [str(python), "-I", "-c", program], input=json.dumps(list(pins)), capture_output=True, text=True
    )
    if answer.returncode != 0:
        raise ServerError(
            f"the new environment does not run: {answer.stderr.strip()[-300:]}",
            hint="auxtap engine setup --rebuild begins from nothing",
        )
    found: dict[str, str] = json.loads(answer.stdout)
    for name, version in pins.items():
        # A local version (2.13.0+cpu) satisfies a pin without one.
        if found.get(name, "").partition("+")[0] != version:
            raise ServerError(
                f"the new environment has {name} {found.get(name, '(none)')}, not {version}",
                hint="run auxtap engine setup --rebuild",
            )
