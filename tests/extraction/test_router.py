"""Behind the real sglang-router: requests go to both servers, and to the other one when one of them dies."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from auxtap.core.cache import CacheLayout
from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.serving.processes import choose_port
from auxtap.tests.extraction.other_packages import install_packages

pytestmark = [pytest.mark.network, pytest.mark.slow]
Maker = Callable[..., ExtractionJob]


@pytest.fixture
def router(server: Any, second: Any, shared_cache: CacheLayout, tmp_path: Path) -> Iterator[str]:
    packages = install_packages(Path(__file__).with_name("router_requirements.txt"), shared_cache)
    port, metrics = choose_port("127.0.0.1", 0), choose_port("127.0.0.1", 0)
    command = [
        *(sys.executable, "-c", "from sglang_router.launch_router import main; main()"),
        *("--worker-urls", server.url, second.url, "--policy", "round_robin"),
        *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)),
    ]
    url = f"http://127.0.0.1:{port}"
    with (tmp_path / "router.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(packages)}, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 60
        while not is_ready(url):
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "router.log").read_text()
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/get_model_info", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def test_both_servers_get_their_share(make_job: Maker, router: str, server: Any, second: Any) -> None:
    job = make_job(40, server_url=router, extra_spools=(second.tap.spool,), parts_timeout_s=5.0)
    assert run_extraction(job).complete
    assert check_store(job.store).findings == ()
    assert min(len(server.requests), len(second.requests)) >= 10
    for spool in (server.tap.spool, second.tap.spool):
        assert not list(spool.glob("*.ready"))


def test_a_server_behind_it_dies(make_job: Maker, router: str, server: Any, second: Any) -> None:
    def die(rid: Any) -> None:
        if server.reached(5):
            threading.Thread(target=server.stop).start()
        if len(server.requests) >= 5:
            raise ConnectionAbortedError

    server.before_answer = die
    job = make_job(
        40, server_url=router, extra_spools=(second.tap.spool,), parts_timeout_s=2.0, max_tries=20, timeout_s=20.0
    )
    summary = run_extraction(job)
    assert summary.complete and summary.failed == 0
    assert check_store(job.store).findings == ()
    assert len(second.requests) >= 30
