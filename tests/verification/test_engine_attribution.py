"""A real server whose batches do not say whose rows they hold: counted, told, and no sample stored."""

import re
import secrets
from collections.abc import Iterator, Mapping
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
from auxtap.serving.profile import LOOPBACK, LaunchSpec
from auxtap.serving.server import ServerProcess
from auxtap.verification.engine.engine_proof import launch_template, write_dataset

NOTE = re.compile(r" +if _auxtap is not None:\n +_auxtap\.note\(.*\)\n")


@pytest.fixture
def unnoted(
    engine: EngineEnvironment, shared_cache: CacheLayout, tiny: Mapping[str, Path], tmp_path: Path
) -> Iterator[LaunchSpec]:
    """A server of a patched tree in which the batches are not noted any more."""
    source = open_source("pypi:0.5.9", shared_cache)
    patch_set = write_patch(source.tree, plan_capture(source.tree, ("deepseek", "llama"), (3, 31, 59)))
    applied = apply_patch(source, patch_set, tmp_path / f"tree-{secrets.token_hex(4)}")
    file = applied.path / "python/sglang/srt/model_executor/forward_batch_info.py"
    text = file.read_text()
    without, n_taken = NOTE.subn("", text)
    assert n_taken == 1
    file.write_text(without)
    spec = launch_template(applied, engine, shared_cache, tmp_path / "spool")
    yield replace(spec, model_path=str(tiny["llama"]), port=choose_port(LOOPBACK, 0), log=tmp_path / "server.log")
    revert(applied.path, force=True)


@pytest.mark.engine
def test_rows_without_an_owner_are_counted_and_no_sample_is_stored(unnoted: LaunchSpec, tmp_path: Path) -> None:
    dataset = read_dataset(write_dataset(tmp_path / "dataset.jsonl", (5, 9, 30)))
    assert unnoted.spool is not None
    job = ExtractionJob(
        dataset, unnoted.url, unnoted.spool, tmp_path / "store", max_tries=1, parts_timeout_s=2.0, concurrency=1
    )
    with ServerProcess(unnoted) as server:
        server.wait_ready(timeout_s=300)
        summary = run_extraction(job)
    assert (summary.stored, summary.failed) == (0, 3)
    assert summary.unattributed >= 3
    assert not summary.complete
    assert not list((tmp_path / "store").glob("samples/*"))
