"""A drafter learns from a store, and less from a store with a fault: the example, small, on a real server's states.

The full experiment is `make drafter`; docs/drafter.md has its table.
"""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from auxtap.checkout.source import open_source
from auxtap.checkout.worktree import apply_patch, revert
from auxtap.core.cache import CacheLayout
from auxtap.extraction.datasets.reading import read_dataset
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.rewriters.patch.diff import write_patch
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.serving.engine_env import EngineEnvironment
from auxtap.serving.processes import choose_port
from auxtap.serving.profile import LOOPBACK
from auxtap.serving.server import ServerProcess
from auxtap.verification.engine.engine_proof import launch_template
from auxtap.verification.engine.engine_scripts import plain_environment
from auxtap.verification.engine.tiny_models import make_tiny_models

pytestmark = pytest.mark.engine
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "drafter"
STEPS, TRAIN, HELDOUT, EPOCHS = "100", "96", "32", "12"
LAYERS = (2, 4, 6)


@pytest.fixture
def run(engine: EngineEnvironment) -> Callable[..., str]:
    """Return a function that runs a script of the example where torch is."""

    def start(script: str, *options: str) -> str:
        command = [str(engine.python), str(EXAMPLE / script), *options]
        done = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return start


def test_a_drafter_learns_from_a_store_and_less_from_a_faulty_one(
    run: Callable[..., str], engine: EngineEnvironment, shared_cache: CacheLayout, tmp_path: Path
) -> None:
    (like,) = make_tiny_models(["llama"], engine, shared_cache)
    options = ("--steps", STEPS, "--train", TRAIN, "--heldout", HELDOUT)
    run("make_target.py", "--like", str(like.path), "--out", str(tmp_path), *options)
    source = open_source("pypi:0.5.9", shared_cache)
    applied = apply_patch(
        source, write_patch(source.tree, plan_capture(source.tree, ("llama",), LAYERS)), tmp_path / "t"
    )
    try:
        template = launch_template(applied, engine, shared_cache, tmp_path / "spool")
        spec = replace(
            template,
            model_path=str(tmp_path / "model"),
            port=choose_port(LOOPBACK, 0),
            layers=LAYERS,
            final="both",
            log=tmp_path / "server.log",
        )
        with ServerProcess(spec) as server:
            server.wait_ready(timeout_s=300)
            for name in ("train", "heldout"):
                dataset = read_dataset(tmp_path / f"{name}.jsonl")
                assert run_extraction(ExtractionJob(dataset, spec.url, tmp_path / "spool", tmp_path / name)).complete
    finally:
        revert(applied.path, force=True)
    stores = ("--train", str(tmp_path / "train"), "--heldout", str(tmp_path / "heldout"))
    small = ("--faults", "nothing,layers_swapped", "--seeds", "0", "--epochs", EPOCHS, "--json")
    text = run("train_head.py", "--model", str(tmp_path / "model"), *stores, *small)
    scores = {row["fault"]: row for row in json.loads(text)["table"]}
    # What is asked for is far above a guess of the commonest token, and far from a tie with a faulty store.
    assert scores["nothing"]["agreement"] > 0.5, scores
    assert scores["nothing"]["agreement"] - scores["layers_swapped"]["agreement"] > 0.03, scores
