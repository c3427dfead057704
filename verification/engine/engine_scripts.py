"""Run our scripts with an engine environment's Python: no auxtap, no stand-ins, no network."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

_DROPPED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH")


def engine_script(name: str) -> Path:
    """Return the path of one of `verification/scripts`."""
    return Path(__file__).resolve().parent.parent / "scripts" / name


def plain_environment() -> dict[str, str]:
    """Return our environment without anything that changes what the engine's Python imports."""
    kept = {
        name: value for name, value in os.environ.items() if name not in _DROPPED and not name.startswith("AUXTAP_")
    }
    return {
        **kept,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONNOUSERSITE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
    }


def run_engine_script(python: Path, script: Path, arguments: Sequence[str], *, timeout_s: float) -> str:
    """Run a script and return what it wrote to stdout.

    Raises:
        CalledProcessError: it failed.
        TimeoutExpired: it took longer than `timeout_s`.
    """
    answer = subprocess.run(
        [str(python), str(script), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=True,
        env=plain_environment(),
        timeout=timeout_s,
    )
    return answer.stdout
