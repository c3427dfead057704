"""A real server that dies or gets stuck in the middle of a run is started again, and the run goes on by itself."""

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.datasets.reading import read_dataset
from auxtap.extraction.run.driver import ExtractionJob, ExtractionProgress, run_extraction
from auxtap.serving.keeper import Keeper
from auxtap.serving.processes import session_members
from auxtap.serving.profile import LaunchSpec
from auxtap.serving.server import WatchedServer
from auxtap.verification.engine.engine_proof import write_dataset
from auxtap.verification.engine.fork_server import ForkServer

pytestmark = pytest.mark.engine
SpecMaker = Callable[..., LaunchSpec]
DICE = random.Random(3)
N_TOKENS = tuple(DICE.randint(50, 200) for _ in range(250))


def kill_all(server: WatchedServer) -> None:
    for member in session_members(server.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)


def stop_schedulers(server: WatchedServer) -> None:
    """Have everything but the HTTP side stand still, as a hanging collective would."""
    for member in psutil.Process(server.pid).children(recursive=True):
        member.send_signal(signal.SIGSTOP)


@pytest.mark.timeout(300)
def test_a_server_that_dies_and_one_that_gets_stuck(
    fork_server: ForkServer, make_spec: SpecMaker, tmp_path: Path
) -> None:
    spec = make_spec()
    assert spec.spool is not None
    dataset = read_dataset(write_dataset(tmp_path / "data.jsonl", N_TOKENS))
    said: list[str] = []
    with fork_server.serve(spec) as server:
        server.wait_ready(timeout_s=120)
        keeper = Keeper(server, restarts=2, timeout_s=120, progress=said.append, pause_s=0.1)
        ended = threading.Thread(target=keeper.keep, daemon=True)
        ended.start()
        faults = {60: kill_all, 140: stop_schedulers}

        def watch(progress: ExtractionProgress) -> None:
            for stored in [stored for stored in faults if progress.stored >= stored]:
                faults.pop(stored)(server)

        job = ExtractionJob(
            dataset,
            spec.url,
            spec.spool,
            tmp_path / "store",
            concurrency=8,
            stall_timeout_s=2.0,
            wait_for_server_s=20.0,
        )
        summary = run_extraction(job, watch)
        assert summary.complete and summary.stored == len(N_TOKENS)
        assert not faults
    assert check_store(job.store).findings == ()
    starts = [line for line in said if "starting it again" in line]
    assert len(starts) == 2
    assert "was killed by SIGKILL" in starts[0]
    assert "an extractor finds the server" in starts[1]
