"""The independent reference: transformers on the same weights, in a process that sees none of our stand-ins."""

import json
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from auxtap.core.errors import CheckFailedError
from auxtap.verification.engine.engine_scripts import engine_script, run_engine_script


@dataclass(frozen=True)
class StoreAndModel:
    """A store, and the folder of the model whose states it holds."""

    store: Path
    model: Path


@dataclass(frozen=True)
class StateComparison:
    """The largest errors of one state over all samples: `max_rel` is Frobenius, a sample at a time.

    `rows` counts the rows that were compared; `worst_sample` has the largest relative error, and where that is
    suspicious `diagnosis` says what its rows are instead.
    """

    state: str
    rows: int
    max_abs: float
    max_rel: float
    worst_sample: str
    diagnosis: str = ""


@dataclass(frozen=True)
class Comparison:
    """A store against the reference."""

    samples: int
    tokens: int
    states: tuple[StateComparison, ...]


@dataclass(frozen=True)
class NoComparison:
    """Why a store could not be held against the reference."""

    problem: str


def compare_stores(
    pairs: Sequence[StoreAndModel], engine_python: Path, *, timeout_s: float = 900.0
) -> tuple[Comparison | NoComparison, ...]:
    """Hold every stored sample of every store against transformers with the weights of its model, in order.

    The stores' parts must be safetensors; `engine_python` is the Python of an engine environment.

    Raises:
        CheckFailedError: the environment cannot run the reference at all.
    """
    arguments = [word for pair in pairs for word in ("--pair", str(pair.store), str(pair.model))]
    try:
        script = engine_script("compare_with_transformers.py")
        output = run_engine_script(engine_python, script, arguments, timeout_s=timeout_s)
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines()
        if error.returncode < 0:
            name = signal.Signals(-error.returncode).name
            why = " (out of memory?)" if name == "SIGKILL" else ""
            raise CheckFailedError(
                f"the reference was killed by {name}{why}", hint="free memory, then run it again; stores are not kept"
            ) from None
        raise CheckFailedError(
            f"the reference failed: {lines[-1] if lines else f'exit {error.returncode}'}",
            hint="run auxtap engine setup --rebuild",
        ) from None
    except subprocess.TimeoutExpired:
        raise CheckFailedError(
            f"the reference took longer than {timeout_s:.0f} s", hint="run it again when the machine has less to do"
        ) from None
    return tuple(_read_comparison(line) for line in output.splitlines())


def compare_store(store: Path, model: Path, engine_python: Path, *, timeout_s: float = 900.0) -> Comparison:
    """Hold one store against the reference.

    Raises:
        CheckFailedError: it cannot be held against it.
    """
    (comparison,) = compare_stores([StoreAndModel(store, model)], engine_python, timeout_s=timeout_s)
    if isinstance(comparison, NoComparison):
        raise CheckFailedError(
            f"{store} cannot be compared with transformers: {comparison.problem}",
            hint="auxtap check STORE tells whether its files are whole",
        )
    return comparison


def _read_comparison(line: str) -> Comparison | NoComparison:
    record = json.loads(line)
    if "problem" in record:
        return NoComparison(record["problem"])
    states = tuple(StateComparison(**state) for state in record["states"])
    return Comparison(record["samples"], record["tokens"], states)
