"""A real server whose tap's writer falls behind: the forward waits, memory stays bounded, no loss is silent."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.datasets.reading import read_dataset
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.serving.profile import LaunchSpec
from auxtap.tap import protocol
from auxtap.verification.engine.engine_proof import write_dataset
from auxtap.verification.engine.fork_server import ForkServer

pytestmark = pytest.mark.engine
SpecMaker = Callable[..., LaunchSpec]
# A token of the tiny model takes 4 states x 64 values x 4 bytes; 20 tokens at a time is far below one sample.
TIGHT_BYTES = 20 * 4 * 64 * 4
LENGTHS = (200, 150, 180, 120, 160, 190, 140, 170)


def stats(spool: Path) -> protocol.TapStats:
    (path,) = spool.glob("stats-*.json")
    return protocol.TapStats.from_json(json.loads(path.read_text()))


def test_the_forward_waits_and_nothing_is_lost(fork_server: ForkServer, make_spec: SpecMaker, tmp_path: Path) -> None:
    spec = make_spec(extra_environment={protocol.ENV_MAX_PENDING_BYTES: str(TIGHT_BYTES)})
    assert spec.spool is not None
    dataset = read_dataset(write_dataset(tmp_path / "data.jsonl", LENGTHS))
    with fork_server.serve(spec) as server:
        server.wait_ready(timeout_s=120)
        job = ExtractionJob(dataset, spec.url, spec.spool, tmp_path / "store", concurrency=8, max_tries=1)
        summary = run_extraction(job)
        seen = stats(spec.spool)
    assert summary.complete and summary.stored == len(LENGTHS)
    assert check_store(job.store).findings == ()
    assert 0 < seen.peak_pending_bytes <= TIGHT_BYTES and seen.waits > 0
    assert (seen.parts_ready, seen.parts_failed, seen.errors) == (len(LENGTHS), 0, 0)


def test_a_writer_that_hangs_fails_the_sample_visibly_and_the_server_lives(
    fork_server: ForkServer, make_spec: SpecMaker, tmp_path: Path
) -> None:
    """With next to no patience, a sample larger than the budget is given up: said, and tried again."""
    spec = make_spec(
        extra_environment={protocol.ENV_MAX_PENDING_BYTES: str(TIGHT_BYTES), protocol.ENV_MAX_WAIT_S: "0.0001"}
    )
    assert spec.spool is not None
    dataset = read_dataset(write_dataset(tmp_path / "data.jsonl", LENGTHS))
    with fork_server.serve(spec) as server:
        server.wait_ready(timeout_s=120)
        job = ExtractionJob(
            dataset, spec.url, spec.spool, tmp_path / "store", concurrency=8, max_tries=2, parts_timeout_s=10.0
        )
        summary = run_extraction(job)
        seen = stats(spec.spool)
        assert summary.stored + summary.failed == len(LENGTHS) and summary.failed > 0
        assert all("the writer fell behind" in fate.reason for fate in summary.not_stored)
        assert seen.parts_failed > 0 and seen.peak_pending_bytes <= TIGHT_BYTES
        assert server.poll() is None
        time.sleep(0.1)
        again = ExtractionJob(
            read_dataset(write_dataset(tmp_path / "short.jsonl", (3, 4, 5))), spec.url, spec.spool,
            tmp_path / "short", concurrency=1, max_tries=5,
        )  # fmt: skip
        assert run_extraction(again).stored == 3
