"""Kills -9 of the extractor and of a real server: with one request at a time the store ends byte for byte the same."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auxtap.extraction.driver import ExtractionJob, run_extraction
from auxtap.extraction.integrity import check_store
from auxtap.extraction.samples import read_dataset
from auxtap.serving.processes import session_members
from auxtap.serving.profile import LaunchSpec
from auxtap.verification.engine import write_dataset
from auxtap.verification.fork_server import ForkServer

pytestmark = pytest.mark.engine
SpecMaker = Callable[..., LaunchSpec]
SCRIPT = Path(__file__).parent.parent / "extraction" / "kill_script.py"
N_EXTRACTOR_KILLS, N_SERVER_KILLS = 9, 3
DICE = random.Random(5)
N_TOKENS = tuple(DICE.randint(1, 200) for _ in range(900))


@pytest.fixture
def start_extractor() -> Iterator[Callable[..., int]]:
    process = subprocess.Popen([sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pids: list[int] = []

    def start(**request: Any) -> int:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"op": "extract", **request}) + "\n")
        process.stdin.flush()
        pids.append(int(process.stdout.readline()))
        return pids[-1]

    yield start
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def contents(store: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    files = {path.name: path.read_bytes() for path in (store / "samples").iterdir()}
    lines = {}
    for text in (store / "ledger.jsonl").read_text().splitlines():
        line = json.loads(text)
        lines[line["id"]] = {key: value for key, value in line.items() if key not in ("time", "attempts", "seconds")}
    return files, sorted(lines.values(), key=lambda line: line["index"])


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill_server(pid: int) -> None:
    """Kill the server and all that it started, at once."""
    for member in session_members(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)


def test_killed_beside_a_real_server(
    fork_server: ForkServer, make_spec: SpecMaker, tmp_path: Path, start_extractor: Callable[..., int]
) -> None:
    spec = make_spec(extra_arguments=("--max-running-requests", "1"))
    assert spec.spool is not None
    dataset = write_dataset(tmp_path / "data.jsonl", N_TOKENS)
    with fork_server.serve(spec) as server:
        server.wait_ready(timeout_s=120)
        job = ExtractionJob(read_dataset(dataset), spec.url, spec.spool, tmp_path / "whole", concurrency=4)
        assert run_extraction(job).complete
    expected = contents(tmp_path / "whole")

    dice = random.Random(7)
    store, result = tmp_path / "killed", tmp_path / "result.json"
    plan = ["extractor"] * N_EXTRACTOR_KILLS + ["server"] * N_SERVER_KILLS
    dice.shuffle(plan)
    plan.append("nobody")
    extractor: int | None = None
    while plan:
        with fork_server.serve(replace(spec, log=tmp_path / f"server-{len(plan)}.log")) as server:
            while plan:
                if extractor is None or not lives(extractor):
                    outcome = json.loads(result.read_text()) if result.exists() else {}
                    result.unlink(missing_ok=True)
                    if outcome.get("complete"):
                        assert plan == ["nobody"], "the data set is too small for so many kills"
                        plan.clear()
                        break
                    assert not outcome.get("failed"), outcome
                    server.wait_ready(timeout_s=120)
                    extractor = start_extractor(
                        dataset=str(dataset), url=spec.url, spool=str(spec.spool), store=str(store),
                        result=str(result), concurrency=4, parts_timeout_s=20.0,
                    )  # fmt: skip
                time.sleep(dice.uniform(0.2, 0.9))
                if plan[0] == "nobody" or not lives(extractor):
                    continue
                if plan.pop(0) == "extractor":
                    os.kill(extractor, signal.SIGKILL)
                    while lives(extractor):
                        time.sleep(0.01)
                else:
                    kill_server(server.pid)
                    break
    assert contents(store) == expected
    assert check_store(store).findings == ()
    assert check_store(store).stored == len(N_TOKENS)
