"""Every format, written by auxtap and read by the trainer's own package; each tensor held against the store."""

import json
import os
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import auxtap
from auxtap.core.cache import CacheLayout
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.serving.engine_env import EngineEnvironment
from auxtap.tests.extraction.trainers import NoTrainersError, trainers_python
from auxtap.verification.engine.engine_scripts import plain_environment

pytestmark = pytest.mark.engine
Maker = Callable[..., ExtractionJob]
SCRIPT = Path(__file__).with_name("read_back_script.py")
DRAFT_VOCAB = ("--draft-vocab", "20")


@pytest.fixture(scope="module")
def trainers(shared_cache: CacheLayout, engine: EngineEnvironment) -> Path:
    try:
        return trainers_python(shared_cache, engine)
    except NoTrainersError as reason:
        pytest.skip(f"the trainers' packages cannot be had: {reason}")


@pytest.fixture
def command(trainers: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that runs a command of auxtap where torch and pyarrow are."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "auxtap").symlink_to(Path(auxtap.__file__).parent)
    paths = os.pathsep.join([str(tmp_path / "path"), sysconfig.get_paths()["purelib"]])

    def run(*words: str) -> dict[str, Any]:
        environment = {**os.environ, "PYTHONPATH": paths}
        line = [str(trainers), "-m", "auxtap.cli", *words, "--json"]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    return run


@pytest.fixture
def export(command: Callable[..., dict[str, Any]], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that exports a store."""

    def run(store: Path, kind: str, *more: str) -> Path:
        out = tmp_path / f"{store.name}-{kind}"
        summary = command("export", str(store), "--format", kind, "--out", str(out), *more)
        assert summary["written"] + summary["linked"] == summary["n_samples"]
        return out

    return run


def read_back(trainers: Path, store: Path, out: Path, kind: str) -> dict[str, str]:
    """Return what the trainer's package makes of an export, check by check."""
    command = [str(trainers), str(SCRIPT), str(store), str(out), kind]
    done = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert results.pop("samples") == 9
    return results


def require_ok(results: dict[str, str]) -> None:
    assert results and set(results.values()) == {"ok"}, "\n".join(results.values())


def make_store(make_job: Maker, tap: Any, final: str, dtype: str) -> Path:
    """Nine samples of 1 to 21 tokens, from two pipeline stages."""
    tap.stages, tap.final, tap.dtype = ((3,), (5, 6)), final, dtype
    tap.announce()
    job = make_job(9, store=make_job(1).store.with_name(f"{final}-{dtype}"))
    assert run_extraction(job).complete
    return job.store


@pytest.mark.parametrize(
    ("kind", "dtype", "more"),
    [
        ("specforge", "BF16", DRAFT_VOCAB),
        ("speculators", "BF16", ()),
        ("modelopt", "BF16", ()),
        ("angelslim", "F16", DRAFT_VOCAB),
        ("ge_data", "F32", ()),
        ("pt", "BF16", DRAFT_VOCAB),
        ("safetensors", "BF16", ()),
    ],
)
def test_the_trainer_reads_what_the_store_holds(
    make_job: Maker, tap: Any, server: Any, trainers: Path, export: Any, kind: str, dtype: str, more: tuple[str, ...]
) -> None:
    store = make_store(make_job, tap, "both", dtype)
    require_ok(read_back(trainers, store, export(store, kind, *more), kind))


def test_modelopt_is_told_of_a_state_before_the_norm(
    make_job: Maker, tap: Any, server: Any, trainers: Path, export: Any
) -> None:
    store = make_store(make_job, tap, "pre-norm", "F32")
    require_ok(read_back(trainers, store, export(store, "modelopt"), "modelopt"))


def test_extract_leaves_a_trainers_files_beside_the_store(
    make_job: Maker, tap: Any, server: Any, trainers: Path, command: Any, write_dataset: Any, tmp_path: Path
) -> None:
    tap.stages = ((3, 5, 6),)
    tap.announce()
    where = ("--server", server.url, "--spool", str(tap.spool), "--out", str(tmp_path / "new"))
    line = ("extract", str(write_dataset(9)), *where, "--format", "specforge", "--reserve", "0", "--canary", "0")
    assert command(*line)["complete"]
    results = read_back(trainers, tmp_path / "new", tmp_path / "new.specforge", "specforge")
    assert "No such file" in results.pop("specforge_vocabulary")
    require_ok(results)
    assert command(*line)["already_stored"] == 9


def test_one_bit_that_differs_is_seen(make_job: Maker, tap: Any, server: Any, trainers: Path, export: Any) -> None:
    store = make_store(make_job, tap, "both", "F32")
    out = export(store, "specforge")
    path = store / "samples" / "00000004.pp1.safetensors"
    data = bytearray(path.read_bytes())
    header = int.from_bytes(data[:8], "little") + 8
    data[header + 8 * 21 + 5] ^= 1  # within hidden.5, behind the ids of 21 tokens
    path.write_bytes(data)
    results = read_back(trainers, store, out, "specforge")
    assert "aux_hidden_state has other values" in results["specforge_files"]
    assert "hidden_state has other values" in results["specforge_training_view"]
    assert "No such file" in results["specforge_vocabulary"]
