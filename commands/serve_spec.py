"""What server a person's options come to: its Python, model, layers, spool and tree."""

import contextlib
import os
import stat
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from auxtap.commands.context import cache_layout, parse_layers
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import ServerError, UsageError

if TYPE_CHECKING:
    from auxtap.serving.profile import LaunchSpec

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


@dataclass(frozen=True)
class Wanted:
    """What a person says of a server on this machine, whichever way it captures."""

    python: Path | None
    layers: str | None
    final: str | None
    cpu: bool
    spool: Path | None
    host: str
    port: int
    log: Path | None
    extra: tuple[str, ...]

    def spec(self, model_path: str, release: str, flags: tuple[str, ...], layers: tuple[int, ...]) -> "LaunchSpec":
        """Return the server without its tree; `flags` and `layers` are those of the patch.

        Raises:
            AuxtapError: an option cannot be had.
        """
        from auxtap.serving.processes import choose_port
        from auxtap.serving.profile import FINAL_STATES, LaunchSpec, check_extra_arguments

        check_extra_arguments(self.extra, self.final or FINAL_STATES[0])
        chosen_layers = parse_layers(self.layers) if self.layers is not None else None
        cache = cache_layout()
        check_model_path(model_path)
        port = choose_port(self.host, self.port)
        return LaunchSpec(
            python=serving_python(self.python, release, cache, cpu=self.cpu),
            tree=None,
            model_path=local_model(model_path),
            host=self.host,
            port=port,
            spool=(self.spool or default_spool(port, cache)).absolute(),
            layers=chosen_layers or layers_for(layers, model_path),
            final=self.final or FINAL_STATES[0],
            cpu=self.cpu,
            release=release,
            required_arguments=flags,
            extra_arguments=self.extra,
            log=(self.log or cache.logs / f"server-{port}.log").absolute(),
            bytecode=cache.bytecode / f"sglang-{release}",
        )


def patched_spec(worktree: Path | None, model_path: str | None, wanted: Wanted) -> "LaunchSpec":
    """Return the server of a patched worktree.

    Raises:
        UsageError: options are missing.
        AuxtapError: the worktree is none of ours, or another option cannot be had.
    """
    from auxtap.checkout.inplace import check_package, find_patched_package
    from auxtap.checkout.worktree import check_applied

    if worktree is None or model_path is None:
        raise UsageError(
            "--worktree and --model-path are needed", hint="or --plugin, or --node NAME, whose profile has both"
        )
    package = find_patched_package(worktree)
    if package is not None:
        patched = check_package(package)
        spec = wanted.spec(model_path, patched.release, patched.server_flags, patched.layers)
        # No tree of its own: the python that serves must be the one whose package was patched.
        return replace(spec, patch_digest=patched.patch_digest, source_digest=patched.source_digest)
    applied = check_applied(worktree)
    spec = wanted.spec(model_path, applied.release, applied.server_flags, applied.layers)
    return replace(spec, tree=applied.path, patch_digest=applied.patch_digest, source_digest=applied.source_digest)


def plugin_spec(
    worktree: Path | None, model_path: str | None, plugin_patch: Path | None, wanted: Wanted
) -> "LaunchSpec":
    """Return a server whose SGLang is not patched: the plugin does in its memory what the patch does to its files.

    Raises:
        UsageError: options are missing, or exclude each other.
        AuxtapError: the SGLang that is installed loads no plugins, or no patch fits it.
    """
    from auxtap.commands.plugin_source import find_plugin_source
    from auxtap.serving.plugin_home import make_plugin_home

    if worktree is not None or wanted.cpu:
        raise UsageError(
            "--plugin serves the SGLang that --python has: neither --worktree nor --cpu goes with it",
            hint="auxtap serve --worktree DIR --cpu serves a patched tree on the CPU",
        )
    if model_path is None:
        raise UsageError("--model-path is needed", hint="name a model folder, or a model on the hub")
    python = serving_python(wanted.python, "", cache_layout(), cpu=False)
    found = find_plugin_source(python, plugin_patch)
    spec = wanted.spec(model_path, found.release, found.server_flags, found.layers)
    patch = None if plugin_patch is None else plugin_patch.absolute()
    return replace(spec, plugin=make_plugin_home(cache_layout()), plugin_patch=patch)


def serving_python(python: Path | None, release: str, cache: CacheLayout, *, cpu: bool) -> Path:
    """Return the Python to serve with.

    Raises:
        ServerError: the CPU engine of the release is not set up, or there is no such Python.
    """
    from auxtap.serving.engine_env import find_engine

    if python is not None:
        # Not resolved: the python of a virtual environment is a link, and its place is what makes it one.
        found = python.expanduser().absolute()
        if not os.access(found, os.X_OK) or found.is_dir():
            raise ServerError(f"{python} is no Python that can be run", hint="name the python of an environment")
        return found
    if not cpu:
        return Path(sys.executable)
    engine = find_engine(release, cache)
    if engine is None:
        raise ServerError(
            f"the engine environment for SGLang {release} is not set up",
            hint=f"run auxtap engine setup --release {release}",
        )
    return engine.python


def default_spool(port: int, cache: CacheLayout) -> Path:
    """Return a spool of this user and port, in memory where there is such a place that is surely ours."""
    folder = SHARED_MEMORY / f"auxtap-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return folder / str(port)
    return cache.root / "spool" / str(port)


def check_model_path(model_path: str) -> None:
    """Refuse what is written like a path and is no model folder; a name on the hub is SGLang's to find.

    Raises:
        UsageError: there is no such folder, or it holds no `config.json`.
    """
    path = Path(model_path).expanduser()
    written_as_path = model_path.startswith((".", "/", "~")) or path.exists() or model_path.count("/") > 1
    if not written_as_path:
        return
    if not path.is_dir():
        raise UsageError(f"no model folder {model_path}", hint="--model-path names a folder with a config.json")
    if not (path / "config.json").is_file():
        raise UsageError(
            f"{model_path} is no model folder: it has no config.json",
            hint="--model-path names the folder with the config.json of a Hugging Face model",
        )


def local_model(model_path: str) -> str:
    """Return the absolute path of a local model, and a hub's name as it is."""
    path = Path(model_path).expanduser()
    return str(path.resolve()) if path.is_dir() else model_path


def layers_for(patch_layers: tuple[int, ...], model_path: str) -> tuple[int, ...]:
    """Return the layers of the patch when the model has them, else three of its depth.

    Raises:
        UsageError: the patch names none and the model's depth is not known.
    """
    from auxtap.serving.profile import default_layers, model_depth

    depth = model_depth(local_model(model_path))
    if patch_layers and (depth is None or max(patch_layers) < depth):
        return patch_layers
    if depth is None:
        raise UsageError(f"the depth of {model_path} is not known here", hint="name --layers")
    return default_layers(depth)
