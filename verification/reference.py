"""The independent reference: transformers on the same weights, in a process that sees none of our stand-ins."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from auxtap.core.errors import CheckFailedError
from auxtap.verification.engine_scripts import engine_script, run_engine_script


@dataclass(frozen=True)
class StateComparison:
    """The largest errors of one state over all samples: `max_rel` is Frobenius, a sample at a time.

    `rows` counts the rows that were compared; `worst_sample` has the largest relative error.
    """

    state: str
    rows: int
    max_abs: float
    max_rel: float
    worst_sample: str


@dataclass(frozen=True)
class Comparison:
    """A store against the reference."""

    samples: int
    tokens: int
    states: tuple[StateComparison, ...]


def compare_store(store: Path, model: Path, engine_python: Path, *, timeout_s: float = 600.0) -> Comparison:
    """Hold every stored sample of `store` against transformers with the weights of `model`.

    The store's parts must be safetensors; `engine_python` is the Python of an engine environment.

    Raises:
        CheckFailedError: the reference cannot be computed, or rows and reference have different shapes.
    """
    script = engine_script("compare_with_transformers.py")
    try:
        output = run_engine_script(
            engine_python, script, ["--store", str(store), "--model", str(model)], timeout_s=timeout_s
        )
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines()
        raise CheckFailedError(
            f"no reference for {model.name}: {lines[-1] if lines else f'exit {error.returncode}'}",
            hint="a wrapper architecture needs a loader in verification/scripts/compare_with_transformers.py",
        ) from None
    except subprocess.TimeoutExpired:
        raise CheckFailedError(f"the reference for {model.name} took longer than {timeout_s:.0f} s") from None
    record = json.loads(output.splitlines()[-1])
    states = tuple(StateComparison(**state) for state in record["states"])
    return Comparison(record["samples"], record["tokens"], states)
