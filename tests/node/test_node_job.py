"""The whole job through ssh: another user, a jump host, odd paths, and SGLang's CPU engine on a tiny Kimi-K2.5."""

import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from auxtap.core.cache import CacheLayout
from auxtap.extraction.datasets.reading import read_dataset
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.serving.engine_env import EngineEnvironment
from auxtap.serving.profile import LaunchSpec
from auxtap.serving.server import ServerProcess
from auxtap.tests.node.conftest import Cli, TestNode, Workplace, free_port, lives, paused, samples, wait_for
from auxtap.tests.node.engine_node import make_workplace
from auxtap.verification.engine.engine_proof import write_dataset

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
NAME = "cpu-node"
N_SAMPLES = 48


@pytest.fixture(scope="module")
def workplace(test_node: TestNode, engine: EngineEnvironment, shared_cache: CacheLayout) -> Workplace:
    return make_workplace(test_node, engine, shared_cache)


@pytest.fixture(scope="module")
def cli(workplace: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    folder = tmp_path_factory.mktemp("here")
    workplace.write_profile(folder / "nodes" / f"{NAME}.toml", free_port())
    dice = random.Random(5)
    write_dataset(folder / "dataset.jsonl", [dice.randint(1, 200) for _ in range(N_SAMPLES)])
    cli = Cli(folder, NAME)
    yield cli
    cli.run("stop", "--node", NAME)


def store_of(workplace: Workplace, name: str) -> Path:
    return workplace.root / name


def test_check_finds_the_node_ready(cli: Cli) -> None:
    found = cli.run("node", "check", NAME, "--json")
    verdicts = {line["check"]: line["verdict"] for line in found["checks"]}
    assert found["ready"], found
    assert set(verdicts.values()) == {"ok"}, found
    assert {"ssh", "clock", "python", "torch", "sglang", "model", "spool", "store", "port", "flags"} <= set(verdicts)


def test_the_whole_job(cli: Cli, workplace: Workplace) -> None:
    """Serve, extract, and hold the store against a local run's, byte for byte."""
    serving = cli.start("serve", "--node", NAME, "--json", "--port", str(free_port()))
    assert serving.stdout is not None
    server = json.loads(serving.stdout.readline() or serving.communicate()[1])
    assert not server["already"]
    assert Path(f"/proc/{server['pid']}").stat().st_uid != 0 or os.geteuid() != 0

    # The port is forwarded, to loopback only; the command ends, the server does not.
    import httpx

    assert httpx.get(f"{server['url']}/health", trust_env=False).status_code == 200
    serving.send_signal(signal.SIGINT)
    assert serving.wait(30) == 130
    for stream in (serving.stdout, serving.stderr):
        assert stream is not None
        stream.close()
    assert cli.status()["server"]["state"] == "ready"

    # Never a second server over a running one; the same one is found again.
    again = cli.run("serve", "--node", NAME, "--detach", "--json")
    assert again["already"]
    assert again["pid"] == server["pid"]
    refused = cli.run("serve", "--node", NAME, "--detach", "--", "--max-running-requests", "2", code=6)
    assert "a server of ours runs on the node already" in refused

    # The canary runs on the node, beside the server, before the many prompts go out.
    extracting = cli.start("extract", "dataset.jsonl", "--node", NAME, "--json")
    printed, said = extracting.communicate(timeout=600)
    assert extracting.returncode == 0, said
    assert re.search("canary on http://.*: rows, batches, .*logits, growth, distinct, again are right", said), said
    summary = json.loads(printed)
    assert summary["complete"]
    assert summary["stored"] == N_SAMPLES

    reference = local_store(cli, workplace)
    assert samples(store_of(workplace, "store one")) == samples(reference)
    assert len(samples(reference)) == N_SAMPLES


def local_store(cli: Cli, workplace: Workplace) -> Path:
    """The same data set through a server that this user starts here, without ssh, agent or detaching."""
    record = json.loads((workplace.root / "server.json").read_text())
    store, port = cli.folder / "local", free_port()
    spec = LaunchSpec(
        python=workplace.python, tree=Path(record["tree"]), model_path=str(workplace.model), port=port,
        log=cli.folder / "server.log", bytecode=workplace.root / "bytecode", spool=cli.folder / "spool",
        layers=(2, 3, 6), cpu=True, release="0.5.9", extra_arguments=("--max-running-requests", "1"),
    )  # fmt: skip
    with ServerProcess(spec) as server:
        server.wait_ready(timeout_s=300)
        summary = run_extraction(
            ExtractionJob(read_dataset(cli.folder / "dataset.jsonl"), spec.url, cli.folder / "spool", store)
        )
    assert summary.complete
    return store


def test_a_killed_client_picks_the_run_up_again(cli: Cli, workplace: Workplace) -> None:
    """SIGKILL while it watches: the node goes on, and the same command watches the same run."""
    store = store_of(workplace, "store two")
    arguments = ("extract", "dataset.jsonl", "--node", NAME, "--out", str(store), "--json", "--concurrency", "1")
    pids = cli.status()["server"]["pids"]
    watching = cli.start(*arguments)
    wait_for(lambda: (store / "samples").is_dir() and len(list((store / "samples").iterdir())) >= 2)
    with paused(pids):
        os.kill(watching.pid, signal.SIGKILL)
        watching.communicate()
        (before,) = (run for run in cli.status()["extractions"] if run["running"])
        again = cli.start(*arguments)
        assert again.stderr is not None
        while "runs already" not in (line := again.stderr.readline()):
            assert line, "it ended without finding the run"
    out, said = again.communicate(timeout=300)
    assert again.returncode == 0, said
    summary = json.loads(out)
    assert (summary["stored"], summary["already_stored"]) == (N_SAMPLES, 0)
    (after,) = (run for run in cli.status()["extractions"] if run["store"] == str(store))
    assert (after["number"], after["process"]) == (1, before["process"])
    assert samples(store) == samples(store_of(workplace, "store one"))


def test_ten_cut_connections_lose_nothing(cli: Cli, workplace: Workplace, test_node: TestNode) -> None:
    """At random moments, on the way to the node or at its jump host, while the run is slowed down to outlive them."""
    store = store_of(workplace, "store three")
    arguments = ("extract", "dataset.jsonl", "--node", NAME, "--out", str(store), "--json", "--concurrency", "1")
    dice, cuts = random.Random(11), 0
    pids = cli.status()["server"]["pids"]
    watching = cli.start(*arguments)
    wait_for((store / "samples").is_dir)
    deadline = time.monotonic() + 120
    while cuts < 10:
        assert time.monotonic() < deadline
        with paused(pids):
            time.sleep(dice.uniform(0.2, 1.2))
            cuts += bool(dice.choice((test_node.node, test_node.jump)).cut())
        time.sleep(0.05)
    out, said = watching.communicate(timeout=300)
    assert watching.returncode == 0, said
    assert said.count("was lost; connecting again") >= 2
    summary = json.loads(out)
    assert (summary["complete"], summary["stored"]) == (True, N_SAMPLES)
    assert samples(store) == samples(store_of(workplace, "store one"))


def test_logs_and_stop(cli: Cli, workplace: Workplace) -> None:
    assert "auxtap: armed" in cli.run("logs", "--node", NAME, "--bytes", "1000000")
    pids = cli.status()["server"]["pids"]
    assert len(pids) > 1
    stopped = cli.run("stop", "--node", NAME, "--json")
    assert set(stopped["server"]["stopped"]) >= set(pids)
    assert not [pid for pid in pids if lives(pid)]
    state = cli.status()["server"]
    assert (state["state"], state["reason"], state["pids"]) == ("dead", "it was stopped", [])
    assert not (workplace.root / "the spool").exists()
    assert "no server lives" in cli.run("extract", "dataset.jsonl", "--node", NAME, code=6)
