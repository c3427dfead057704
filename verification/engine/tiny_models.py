"""Tiny random-weight models: made once by an engine environment, kept in the cache."""

import secrets
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from auxtap.core.cache import CacheLayout
from auxtap.core.errors import CheckFailedError, UsageError
from auxtap.core.files import fsync_directory, held_lock, sha256_bytes
from auxtap.serving.engine_env import EngineEnvironment
from auxtap.verification.engine.engine_scripts import engine_script, run_engine_script

# The names that verification/scripts/make_tiny_models.py knows; a test compares them.
TINY_MODELS = ("llama", "mixtral", "starcoder2", "qwen2", "qwen3", "qwen3_moe", "gpt_oss", "deepseek_v3", "kimi_k25")
# Three states of eight blocks, in both halves of a pipeline of two stages.
TINY_LAYERS = (2, 3, 6)
# The token that ends an answer of every tiny model.
END_ID = 247
SCRIPT, PROCESSOR = "make_tiny_models.py", "tiny_kimi_processor.py"
TIMEOUT_S = 300.0
HOW_TO_ADD = f"a new architecture is one function decorated with @tiny in verification/scripts/{SCRIPT}"
# GPT-OSS refuses every attention backend that runs on a CPU; `triton` is our stand-in there (serving/cpu_shim), which
# knows one memory pool only.
_SERVER_ARGUMENTS = {"gpt_oss": ("--attention-backend", "triton", "--disable-hybrid-swa-memory")}
STAND_INS = {"gpt_oss": "stand-in kernels"}


@dataclass(frozen=True)
class TinyModel:
    """A model folder that SGLang and transformers load."""

    name: str
    path: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        """What a server needs to load it: a processor that travels with the model is code of the model's own."""
        remote = ("--trust-remote-code",) if (self.path / "processor_config.json").is_file() else ()
        return (*remote, *_SERVER_ARGUMENTS.get(self.name, ()))

    @property
    def stand_ins(self) -> str:
        """Which of SGLang's kernels a CPU server of this model has none of: ours replace them. Empty: none."""
        return STAND_INS.get(self.name, "")


def recipe_digest(engine: EngineEnvironment) -> str:
    """Return a digest of all that the weights come from: the script and the pinned packages that run it."""
    scripts = b"".join(engine_script(name).read_bytes() for name in (SCRIPT, PROCESSOR))
    return sha256_bytes(scripts + engine.lock.digest.encode())[:16]


def make_tiny_models(
    names: Sequence[str],
    engine: EngineEnvironment,
    cache: CacheLayout,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[TinyModel, ...]:
    """Return the models called `names`, made now or before; a folder has its final name only when it is whole.

    Raises:
        UsageError: there is no recipe of that name.
        CheckFailedError: the engine environment cannot make one.
    """
    for name in names:
        if name not in TINY_MODELS:
            raise UsageError(
                f"there is no tiny model {name!r}; there are {', '.join(TINY_MODELS)}",
                hint=HOW_TO_ADD,
            )
    digest = recipe_digest(engine)
    models = tuple(TinyModel(name, cache.models / f"{name}-{digest}") for name in dict.fromkeys(names))
    with held_lock(cache.models / ".lock"):
        missing = [model for model in models if not model.path.is_dir()]
        if missing:
            progress(f"making tiny models: {', '.join(model.name for model in missing)}")
            _make(missing, engine, cache)
    return models


def _make(models: Sequence[TinyModel], engine: EngineEnvironment, cache: CacheLayout) -> None:
    for leftover in cache.models.glob(".making-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    workshop = cache.models / f".making-{secrets.token_hex(4)}"
    workshop.mkdir()
    try:
        names = [model.name for model in models]
        run_engine_script(engine.python, engine_script(SCRIPT), ["--out", str(workshop), *names], timeout_s=TIMEOUT_S)
        for model in models:
            fsync_directory(workshop / model.name)
            (workshop / model.name).rename(model.path)
        fsync_directory(cache.models)
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines()
        raise CheckFailedError(
            f"the tiny models could not be made: {lines[-1] if lines else f'exit {error.returncode}'}",
            hint=f"run auxtap engine setup --release {engine.release} --rebuild",
        ) from None
    except subprocess.TimeoutExpired:
        raise CheckFailedError(
            f"making the tiny models took longer than {TIMEOUT_S:.0f} s",
            hint="run it again when the machine has less to do",
        ) from None
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
