"""The environment in which the trainers' own packages read what was exported: pinned, made once, kept in the cache.

Everything is installed without dependencies: specforge pins an SGLang, speculators wants torchvision. torch,
transformers and safetensors come from the engine's environment, which a .pth file names.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from auxtap.core.cache import CacheLayout
from auxtap.core.errors import AuxtapError
from auxtap.core.files import held_lock, publish_json
from auxtap.serving.engine_env import EngineEnvironment
from auxtap.serving.pip import Pip, pip_environment

PACKAGES = (
    *("specforge==0.2.0", "speculators==0.9.0", "hs-connectors==0.9.0", "nvidia-modelopt==0.47.0"),
    # What they import beyond the engine's packages; datasets 4.4.1 is the last for the engine's huggingface-hub.
    *("datasets==4.4.1", "pyarrow==26.0.1", "pandas==3.1.1", "multiprocess==0.70.19", "python-dateutil==4.0.0"),
    *("pytz==2026.6", "tzdata==2026.6", "six==1.17.0", "omegaconf==2.4.0", "antlr4-python3-runtime==4.9.3"),
    *("pulp==3.3.2", "rich==15.0.0", "scipy==1.17.1"),
)
MARKER = "auxtap-trainers.json"


class NoTrainersError(Exception):
    """The environment cannot be made here; says why."""


def trainers_python(cache: CacheLayout, engine: EngineEnvironment) -> Path:
    """Return the Python of the environment, made when it is not there.

    Raises:
        NoTrainersError: a package cannot be had.
    """
    wanted = {"packages": list(PACKAGES), "engine": str(engine.folder), "python": engine.python_version}
    digest = hashlib.sha256(json.dumps(wanted).encode()).hexdigest()[:12]
    folder = cache.root / "trainers" / digest
    with held_lock(folder.with_name(f".{digest}.lock")):
        if not (folder / MARKER).is_file():
            _make(folder, engine)
            publish_json(folder / MARKER, wanted)
    return folder / "bin" / "python"


def _make(folder: Path, engine: EngineEnvironment) -> None:
    command = [sys.executable, "-m", "venv", "--clear", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, env=pip_environment())
    if made.returncode != 0:
        raise NoTrainersError(f"no virtual environment: {(made.stdout + made.stderr).strip()[-300:]}")
    site = next((folder / "lib").glob("python*")) / "site-packages"
    theirs = next((engine.folder / "lib").glob("python*")) / "site-packages"
    (site / "engine.pth").write_text(f"{theirs}\n")
    try:
        Pip(folder / "bin" / "python", folder / "setup.log", lambda _: None).install(["--no-deps", *PACKAGES], PACKAGES)
    except AuxtapError as error:
        raise NoTrainersError(error.message) from None
