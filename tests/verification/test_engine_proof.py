"""The numeric proof itself, and that it sees what it must not let through."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from auxtap.serving.engine_env import EngineEnvironment
from auxtap.serving.profile import LaunchSpec
from auxtap.verification.engine.engine_report import TOLERANCE
from auxtap.verification.engine.engine_run import extract_all, write_dataset
from auxtap.verification.engine.engine_settings import Setting
from auxtap.verification.engine.fork_server import ForkServer
from auxtap.verification.engine.reference import Comparison, NoComparison, StoreAndModel, compare_stores

pytestmark = pytest.mark.engine
Tensors = dict[str, np.ndarray[Any, Any]]


def swap(tensors: Tensors) -> None:
    """Two layers in each other's place."""
    tensors["hidden.2"], tensors["hidden.3"] = tensors["hidden.3"], tensors["hidden.2"]


def shift(tensors: Tensors) -> None:
    """Each row in the place of the one before."""
    tensors["hidden.6"] = np.roll(tensors["hidden.6"], 1, axis=0)


def spoil_one_row(tensors: Tensors) -> None:
    """The last row of the last prompt comes from another row."""
    tensors["final"] = np.concatenate([tensors["final"][:-1], tensors["final"][:1]])


def make_nan(tensors: Tensors) -> None:
    """One element is no number."""
    tensors["hidden.2"] = tensors["hidden.2"].copy()
    tensors["hidden.2"][-1, -1] = np.nan


def lower_precision(tensors: Tensors) -> None:
    """A state went through bfloat16's eight bits of precision."""
    bits = tensors["hidden.3"].view(np.uint32) & np.uint32(0xFFFF0000)
    tensors["hidden.3"] = bits.view(np.float32)


def lose_a_row(tensors: Tensors) -> None:
    """A row is missing."""
    tensors["final"] = tensors["final"][:-1]


FAULTS: Mapping[Callable[[Tensors], None], tuple[str, ...]] = {
    swap: ("hidden.2", "hidden.3"),
    shift: ("hidden.6",),
    spoil_one_row: ("final",),
    make_nan: ("hidden.2",),
    lower_precision: ("hidden.3",),
}


def test_the_proof_sees_faults_and_names_the_state(
    fork_server: ForkServer,
    make_spec: Callable[..., LaunchSpec],
    engine: EngineEnvironment,
    tiny: Mapping[str, Path],
    tmp_path: Path,
) -> None:
    spec = make_spec()
    good = tmp_path / "good"
    with fork_server.serve(spec) as server:
        server.wait_ready(timeout_s=60)
        setting = Setting("three", "three prompts", lengths=(1, 40, 7))
        extract_all(
            spec, write_dataset(tmp_path / "dataset.jsonl", setting.lengths, repeated=setting.repeated), good, setting
        )
    faults = [*FAULTS, lose_a_row]
    stores = [good, *(spoiled(good, tmp_path / fault.__name__, fault) for fault in faults)]
    results = compare_stores([StoreAndModel(store, tiny["llama"]) for store in stores], engine.python)
    for store, result in zip(stores, results, strict=True):
        if store.name == lose_a_row.__name__:
            assert isinstance(result, NoComparison)
            assert "final has shape [6, 64], the reference [7, 64]" in result.problem
            continue
        assert isinstance(result, Comparison), store
        assert [state.rows for state in result.states] == [48] * 4
        wrong = tuple(state.state for state in result.states if not state.max_rel <= TOLERANCE)
        assert wrong == next((states for fault, states in FAULTS.items() if fault.__name__ == store.name), ())


def spoiled(good: Path, store: Path, fault: Callable[[Tensors], None]) -> Path:
    """Copy a store and change the file of its last sample."""
    shutil.copytree(good, store)
    path = store / "samples" / "00000002.pp0.safetensors"
    tensors = load_file(path)
    fault(tensors)
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path)
    return store


def test_a_reference_that_does_not_load_is_a_problem_not_a_result(engine: EngineEnvironment, tmp_path: Path) -> None:
    (result,) = compare_stores([StoreAndModel(tmp_path, tmp_path / "no-model")], engine.python)
    assert isinstance(result, NoComparison)
    assert "no-model" in result.problem
