"""Kills -9 of the extractor and of a real server: the store ends as if there had been none.

One request at a time it ends byte for byte the same. Where requests share batches, which ones do changes the last bits.
`--engine-kills N` asks for another number of kills than the few of every test run.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.datasets.reading import read_dataset
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.serving.processes import session_members
from auxtap.serving.profile import LaunchSpec
from auxtap.verification.engine.engine_proof import TOLERANCE, write_dataset
from auxtap.verification.engine.fork_server import ForkServer

pytestmark = pytest.mark.engine
SpecMaker = Callable[..., LaunchSpec]
SCRIPT = Path(__file__).parent.parent / "extraction" / "kill_script.py"
DICE = random.Random(5)
N_TOKENS = tuple(DICE.randint(1, 200) for _ in range(600))
# Of the kills so many are the server's; the others are the extractor's.
SERVERS_SHARE = 0.25
ONE_AT_A_TIME = ("--max-running-requests", "1")


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


@dataclass
class Killed:
    """A run that is killed over and over, into one store after the other; `expected` is that of a run left alone."""

    dataset: Path
    folder: Path
    spec: LaunchSpec
    plan: list[str]
    start: Callable[..., int]
    compare: Callable[[Path], None]
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    n_stores: int = 0
    extractor: int | None = None

    @property
    def store(self) -> Path:
        return self.folder / f"killed-{self.n_stores}"

    @property
    def result(self) -> Path:
        return self.folder / "result.json"

    def carry_out(self, fork_server: ForkServer) -> None:
        """Serve and extract until every kill was made and the last store is whole."""
        n_servers = 0
        while self.plan or self.extractor is not None:
            n_servers += 1
            log = self.folder / f"server-{n_servers}.log"
            with fork_server.serve(replace(self.spec, log=log)) as server:
                server.wait_ready(timeout_s=120)
                self._extract_until_killed(server.pid)

    def _extract_until_killed(self, server: int) -> None:
        """Let the extractor run, killed and started again, until the server's turn to be killed has come."""
        while True:
            if self.extractor is not None and not lives(self.extractor):
                self._take_outcome()
            if self.extractor is None:
                if not self.plan and self.n_stores and not self.store.exists():
                    return
                self.extractor = self.start(
                    dataset=str(self.dataset), url=self.spec.url, spool=str(self.spec.spool), store=str(self.store),
                    result=str(self.result), concurrency=4, parts_timeout_s=20.0,
                )  # fmt: skip
            time.sleep(self.dice.uniform(0.2, 0.9))
            if not self.plan or not lives(self.extractor):
                continue
            if self.plan.pop(0) == "server":
                kill_server(server)
                return
            os.kill(self.extractor, signal.SIGKILL)
            while lives(self.extractor):
                time.sleep(0.01)

    def _take_outcome(self) -> None:
        self.extractor = None
        outcome = json.loads(self.result.read_text()) if self.result.exists() else {}
        self.result.unlink(missing_ok=True)
        assert not outcome.get("failed"), outcome
        if outcome.get("complete"):
            self.compare(self.store)
            report = check_store(self.store)
            assert (report.findings, report.stored) == ((), len(N_TOKENS))
            self.n_stores += 1


def ledger_lines(store: Path) -> list[dict[str, Any]]:
    """The last line of each id in the order of the dataset, without time and attempts."""
    lines = {}
    for text in (store / "ledger.jsonl").read_text().splitlines():
        line = json.loads(text)
        assert line["id"] not in lines, "a stored sample was taken again"
        lines[line["id"]] = {key: value for key, value in line.items() if key not in ("time", "attempts", "seconds")}
    return sorted(lines.values(), key=lambda line: line["index"])


def contents(store: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    return {path.name: path.read_bytes() for path in (store / "samples").iterdir()}, ledger_lines(store)


def without_digests(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    digests = ("digest", "tap_digest")
    return [
        {**line, "parts": [{k: v for k, v in part.items() if k not in digests} for part in line["parts"]]}
        for line in lines
    ]


def assert_close(store: Path, other: Path) -> None:
    """Ids, fates, masks, shapes and order are the same, values within the tolerance in float32."""
    assert without_digests(ledger_lines(store)) == without_digests(ledger_lines(other))
    names = sorted(path.name for path in (other / "samples").iterdir())
    assert sorted(path.name for path in (store / "samples").iterdir()) == names
    for name in names:
        ours, theirs = load_file(store / "samples" / name), load_file(other / "samples" / name)
        assert {key: (value.shape, value.dtype) for key, value in ours.items()} == {
            key: (value.shape, value.dtype) for key, value in theirs.items()
        }
        for key, value in theirs.items():
            if value.dtype == np.float32:
                assert np.linalg.norm(ours[key] - value) <= TOLERANCE * np.linalg.norm(value), f"{name}: {key}"
            else:
                assert np.array_equal(ours[key], value), f"{name}: {key}"


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


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("arguments", [ONE_AT_A_TIME, ()], ids=["one at a time", "in shared batches"])
def test_killed_beside_a_real_server(
    arguments: tuple[str, ...],
    fork_server: ForkServer,
    make_spec: SpecMaker,
    tmp_path: Path,
    start_extractor: Callable[..., int],
    request: pytest.FixtureRequest,
) -> None:
    n_kills: int = request.config.getoption("--engine-kills")
    spec = make_spec(extra_arguments=arguments)
    assert spec.spool is not None
    dataset = write_dataset(tmp_path / "data.jsonl", N_TOKENS)
    whole = tmp_path / "whole"
    with fork_server.serve(spec) as server:
        server.wait_ready(timeout_s=120)
        job = ExtractionJob(read_dataset(dataset), spec.url, spec.spool, whole, concurrency=4)
        assert run_extraction(job).complete

    def compare(store: Path) -> None:
        if arguments == ONE_AT_A_TIME:
            assert contents(store) == contents(whole)
        else:
            assert_close(store, whole)

    n_servers = round(n_kills * SERVERS_SHARE)
    plan = ["server"] * n_servers + ["extractor"] * (n_kills - n_servers)
    random.Random(7).shuffle(plan)
    run = Killed(dataset, tmp_path, spec, plan, start_extractor, compare)
    run.carry_out(fork_server)
    sys.stdout.write(f"{n_kills} kills, {n_servers} of them the server's, over {run.n_stores} stores\n")
    assert run.n_stores >= 1
