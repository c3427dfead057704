"""What this machine has of what auxtap's commands need; nothing is changed and nothing downloaded."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

from auxtap.commands.serve_spec import SHARED_MEMORY
from auxtap.core.cache import CacheLayout
from auxtap.node.checks import FAIL, OK, WARN, CheckLine

MIN_GIT = (2, 30)
# An engine environment with its wheels, and what one more takes (measured with 0.5.9: 1.3 GB installed).
ENGINE_BYTES = 3 << 30
# Packages of the optional extras: import names -> extra, what needs it.
_EXTRAS = (
    (("torch",), "pt", "extract --format pt, torch data sets"),
    (("transformers", "jinja2"), "tokenizer", "extract --tokenizer, data sets of messages"),
    (("prometheus_client",), "metrics", "extract --metrics-port"),
    (("fsspec",), "remote", "stores at s3:// and other URLs"),
)
NETWORK_TIMEOUT_S = 10.0


def examine(cache: CacheLayout, *, online: bool) -> Iterator[CheckLine]:
    """Yield one line for each thing; with `online` the package index is asked too."""
    yield _python()
    yield _venv()
    yield _git()
    yield from _cache(cache)
    yield from _engines(cache)
    yield _torch_index(cache)
    yield _shared_memory()
    yield _ssh()
    yield from _extras()
    if online:
        yield _index()


def _python() -> CheckLine:
    version = platform.python_version()
    return CheckLine("python", OK, f"{version} ({sys.executable})")


def _venv() -> CheckLine:
    if importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"):
        return CheckLine("venv", OK, "virtual environments can be made")
    remedy = "apt install python3-venv, or another Python: auxtap engine setup --python PATH"
    return CheckLine("venv", WARN, "this Python cannot make virtual environments: no engine setup, no demo", remedy)


def _git() -> CheckLine:
    try:
        text = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return CheckLine("git", FAIL, "there is no git: no source can be opened", "install git")
    found = re.search(r"(\d+)\.(\d+)", text)
    if found is None or tuple(map(int, found.groups())) < MIN_GIT:
        wanted = ".".join(map(str, MIN_GIT))
        return CheckLine("git", FAIL, f"{text.strip()}: too old for worktrees and patches", f"git {wanted} or newer")
    return CheckLine("git", OK, text.strip().removeprefix("git version "))


def _cache(cache: CacheLayout) -> Iterator[CheckLine]:
    folder = cache.root
    standing = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(standing, os.W_OK):
        remedy = "name another with AUXTAP_CACHE, or cache in auxtap.toml"
        yield CheckLine("cache", FAIL, f"{folder} cannot be written", remedy)
        return
    n_sources = sum(1 for _ in cache.sources.glob("*.git")) if cache.sources.is_dir() else 0
    yield CheckLine("cache", OK, f"{folder}: {n_sources} source trees")
    free = shutil.disk_usage(standing).free
    short = free < ENGINE_BYTES
    remedy = "AUXTAP_CACHE names a folder on another disk" if short else ""
    what = f"{_gib(free)} free for the cache; an engine takes {_gib(ENGINE_BYTES)}"
    yield CheckLine("disk", WARN if short else OK, what, remedy)


def _engines(cache: CacheLayout) -> Iterator[CheckLine]:
    from auxtap.serving.engine_env import MARKER

    found = sorted(path.parent.name for path in cache.engines.glob(f"*/{MARKER}")) if cache.engines.is_dir() else []
    if found:
        yield CheckLine("engines", OK, ", ".join(found))
    else:
        what = "none is set up: serve --cpu, verify --engine and demo need one"
        yield CheckLine("engines", WARN, what, "auxtap engine setup, or auxtap demo, which does it too")


def _torch_index(cache: CacheLayout) -> CheckLine:
    named = os.environ.get("PIP_INDEX_URL") or os.environ.get("UV_INDEX_URL")
    where = "an index that the environment names" if named else "the index of pip's configuration"
    if platform.machine() not in ("x86_64", "AMD64") or any(cache.engines.glob("*")):
        return CheckLine("torch", OK, f"engines get torch from {where}")
    remedy = "auxtap engine setup --torch-index URL, with an index of CPU builds, saves it"
    return CheckLine("torch", WARN, f"{where}: PyPI's build for x86-64 is of several GB", remedy)


def _shared_memory() -> CheckLine:
    if not SHARED_MEMORY.is_dir() or not os.access(SHARED_MEMORY, os.W_OK):
        return CheckLine("spool", WARN, f"no {SHARED_MEMORY}: the spool lies in the cache", "serve --spool DIR")
    usage = shutil.disk_usage(SHARED_MEMORY)
    what = f"{SHARED_MEMORY}: {_gib(usage.free)} of {_gib(usage.total)} free"
    if usage.free < 1 << 30:
        return CheckLine("spool", WARN, f"{what}; extract waits while the spool is full", "serve --spool DIR")
    return CheckLine("spool", OK, what)


def _ssh() -> CheckLine:
    found = shutil.which("ssh")
    if found:
        return CheckLine("ssh", OK, found)
    return CheckLine("ssh", WARN, "no ssh: --node cannot be used", "install OpenSSH's client (openssh-client)")


def _extras() -> Iterator[CheckLine]:
    for names, extra, needed_by in _EXTRAS:
        missing = [name for name in names if importlib.util.find_spec(name) is None]
        if missing:
            yield CheckLine(extra, WARN, f"no {', '.join(missing)}: {needed_by}", f"pip install 'auxtap[{extra}]'")
        else:
            yield CheckLine(extra, OK, f"{', '.join(names)}: {needed_by}")


def _index() -> CheckLine:
    import httpx

    from auxtap.checkout.index import chosen_index

    index = chosen_index()
    try:
        answer = httpx.get(f"{index.url}/sglang/", timeout=NETWORK_TIMEOUT_S, follow_redirects=True)
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        remedy = "pypi:VERSION needs it where a release is not in the cache yet; PIP_INDEX_URL names another"
        return CheckLine("index", WARN, f"the package index does not answer: {type(error).__name__}", remedy)
    return CheckLine("index", OK, "the package index answers")


def _gib(n_bytes: float) -> str:
    return f"{n_bytes / (1 << 30):.1f} GiB"
