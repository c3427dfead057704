"""Over a hundred kills -9, of extractor and server, at random moments: the store ends as if there had been none."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.run.driver import ExtractionJob, run_extraction

pytestmark = pytest.mark.slow

Maker = Callable[..., ExtractionJob]
SCRIPT = Path(__file__).with_name("kill_script.py")
N_KILLS, N_SAMPLES = 110, 150
STAGES = ((3,), (5,))


class Zygote:
    """Starts the processes that are to be killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pids: list[int] = []

    def start(self, **request: Any) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        self.pids.append(int(self._process.stdout.readline()))
        return self.pids[-1]

    def close(self) -> None:
        for pid in self.pids:
            kill(pid)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill(pid: int) -> bool:
    """Kill a process and wait until it is gone; tell whether it lived."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    while lives(pid):
        time.sleep(0.001)
    return True


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()


def contents(store: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """The files, and the last line of each id in the order of the dataset, without time and attempts."""
    files = {path.name: path.read_bytes() for path in (store / "samples").iterdir()}
    lines = {}
    for text in (store / "ledger.jsonl").read_text().splitlines():
        line = json.loads(text)
        lines[line["id"]] = {key: value for key, value in line.items() if key not in ("time", "attempts", "seconds")}
    return files, sorted(lines.values(), key=lambda line: line["index"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.timeout(300)
def test_killed_a_hundred_times(make_job: Maker, tap: Any, server: Any, zygote: Zygote, tmp_path: Path) -> None:
    tap.stages = STAGES
    (tap.spool / "rank-testhost-0-0.json").unlink()
    tap.announce()
    whole = make_job(N_SAMPLES, store=tmp_path / "whole")
    assert run_extraction(whole).complete
    expected = contents(whole.store)

    dice = random.Random(2024)
    spool, store, result = tmp_path / "killed-spool", tmp_path / "killed", tmp_path / "result.json"
    spool.mkdir(mode=0o700)
    port = free_port()
    kills = {"extractor": 0, "server": 0}
    rounds = n_started = 0

    def serve() -> int:
        nonlocal n_started
        n_started += 1
        return zygote.start(
            op="serve", spool=str(spool), port=port, stages=STAGES, nonce=f"nonce-{n_started}", delay_s=0.02
        )

    def extract() -> int:
        return zygote.start(
            op="extract", dataset=str(whole.dataset.path), url=f"http://127.0.0.1:{port}", spool=str(spool),
            store=str(store), result=str(result), concurrency=3, parts_timeout_s=3.0,
        )  # fmt: skip

    server_pid, extractor_pid = serve(), extract()
    while True:
        time.sleep(dice.uniform(0.0, 0.25))
        outcome = json.loads(result.read_text()) if result.exists() else None
        result.unlink(missing_ok=True)
        if outcome is not None:
            assert outcome["failed"] == 0, outcome
            if outcome["complete"]:
                rounds += 1
                assert contents(store) == expected
                assert check_store(store).findings == ()
                stored = [json.loads(line)["id"] for line in (store / "ledger.jsonl").read_text().splitlines()]
                assert len(stored) == len(set(stored)) == N_SAMPLES, "a stored sample was taken again"
                assert not [path for path in spool.iterdir() if path.name.endswith((".ready", ".failed"))]
                if sum(kills.values()) >= N_KILLS:
                    break
                store = tmp_path / f"killed-{rounds}"
        elif sum(kills.values()) < N_KILLS:
            if dice.random() < 0.4:
                kills["server"] += kill(server_pid)
                time.sleep(dice.uniform(0.0, 0.1))
            else:
                kills["extractor"] += kill(extractor_pid)
        if not lives(server_pid):
            server_pid = serve()
        if not lives(extractor_pid):
            extractor_pid = extract()
    assert kills["extractor"] >= 40 and kills["server"] >= 25 and rounds >= 1
