"""The whole job through ssh on a node that has a bare Python and nothing else: no numpy, no httpx, no git needed."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from auxtap.core.source_tree import PACKAGE_ROOT
from auxtap.tests.node.bare_node import make_bare_workplace, tables
from auxtap.tests.node.conftest import (
    Cli,
    TestNode,
    Workplace,
    free_port,
    lives,
    paused,
    processes_of,
    quoted,
    samples,
    wait_for,
)
from auxtap.verification.engine.engine_proof import write_dataset

pytestmark = pytest.mark.slow

NAME = "bare"
N_SAMPLES = 40


@pytest.fixture(scope="module")
def workplace(test_node: TestNode, node_python: Path) -> Workplace:
    return make_bare_workplace(test_node, node_python, "bare")


@pytest.fixture
def cli(workplace: Workplace, tmp_path: Path) -> Iterator[Cli]:
    workplace.write_profile(tmp_path / "nodes" / f"{NAME}.toml", 0, **tables(workplace))
    dice = random.Random(5)
    write_dataset(tmp_path / "dataset.jsonl", [dice.randint(1, 200) for _ in range(N_SAMPLES)])
    cli = Cli(tmp_path, NAME)
    yield cli
    cli.run("stop", "--node", NAME)
    if os.geteuid() == 0:
        # Nothing of ours is left on the node; watchers whose client was killed notice it at their next beat.
        wait_for(lambda: not processes_of(workplace.root.stat().st_uid))


def slow_server(cli: Cli, workplace: Workplace) -> list[int]:
    """Serve so that a run takes its time; return the server's processes."""
    text = tables(workplace, environment='FAKE_DELAY_S = "0.5"')
    workplace.write_profile(cli.folder / "nodes" / f"{NAME}.toml", 0, **text)
    cli.run("serve", "--node", NAME, "--detach")
    pids: list[int] = cli.status()["server"]["pids"]
    return pids


def extract(store: Path, *more: str) -> tuple[str, ...]:
    # No canary: it needs numpy on the node.
    options = ("--json", "--concurrency", "2", "--canary", "0")
    return ("extract", "dataset.jsonl", "--node", NAME, "--out", str(store), *options, *more)


def test_the_whole_job(cli: Cli, workplace: Workplace) -> None:
    serving = cli.start("serve", "--node", NAME, "--json", "--port", str(free_port()))
    assert serving.stdout is not None
    server = json.loads(serving.stdout.readline() or serving.communicate()[1])
    import httpx

    answer = httpx.get(f"{server['url']}/get_model_info", trust_env=False)
    assert answer.json()["model_path"] == str(workplace.model)
    serving.send_signal(signal.SIGINT)
    _, said = serving.communicate(timeout=30)
    assert serving.returncode == 130
    assert f"auxtap stop --node {NAME} ends it" in said
    summary = cli.run(*extract(workplace.root / "store 1"))
    assert (summary["complete"], summary["stored"]) == (True, N_SAMPLES)
    assert cli.run("check", str(workplace.root / "store 1"), "--json")["sound"]
    assert cli.run(*extract(workplace.root / "store 1"))["already_stored"] == N_SAMPLES


def test_never_a_second_server_and_all_of_it_is_stopped(cli: Cli, workplace: Workplace) -> None:
    first = cli.run("serve", "--node", NAME, "--detach", "--json")
    assert cli.run("serve", "--node", NAME, "--detach", "--json")["pid"] == first["pid"]
    refused = cli.run("serve", "--node", NAME, "--detach", "--", "--max-running-requests", "2", code=6)
    assert "a server of ours runs on the node already" in refused
    status = cli.status()["server"]
    assert (status["state"], len(status["pids"])) == ("ready", 2)
    assert "auxtap: armed" in cli.run("logs", "--node", NAME)
    assert sorted(cli.run("stop", "--node", NAME, "--json")["server"]["stopped"]) == sorted(status["pids"])
    assert cli.status()["server"]["state"] == "dead"
    assert "nothing was running" in cli.run("stop", "--node", NAME)


def test_what_a_dead_server_leaves_is_found_and_stopped(cli: Cli) -> None:
    pid = cli.run("serve", "--node", NAME, "--detach", "--json")["pid"]
    os.kill(pid, signal.SIGKILL)
    state = cli.status()["server"]
    assert state["state"] == "leftover"
    (left,) = state["pids"]
    assert f"processes of it are left: {left}" in cli.run("status", "--node", NAME)
    assert f"processes of it are left: {left}" in cli.run("serve", "--node", NAME, "--detach", code=6)
    cli.run("stop", "--node", NAME)
    assert not lives(left)


def test_a_foreign_server_on_the_port_is_left_alone(cli: Cli, workplace: Workplace) -> None:
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        foreign.listen(1)
        text = tables(workplace, server=f"port = {foreign.getsockname()[1]}")
        workplace.write_profile(cli.folder / "nodes" / f"{NAME}.toml", 0, **text)
        assert "in use by something that is not ours" in cli.run("serve", "--node", NAME, "--detach", code=6)
        assert "in use by something that is not ours" in cli.run("node", "check", NAME, code=1)


def test_a_server_that_dies_says_why(cli: Cli, workplace: Workplace) -> None:
    text = tables(workplace, environment='FAKE_DEATH = "out of luck"')
    workplace.write_profile(cli.folder / "nodes" / f"{NAME}.toml", 0, **text)
    said = cli.run("serve", "--node", NAME, "--detach", code=6)
    assert "the server on the node: RuntimeError: out of luck" in said
    assert f"auxtap logs --node {NAME}" in said


def test_a_killed_client_picks_the_run_up_again(cli: Cli, workplace: Workplace) -> None:
    pids = slow_server(cli, workplace)
    store = workplace.root / "store 2"
    watching = cli.start(*extract(store))
    wait_for(lambda: (store / "samples").is_dir() and len(list((store / "samples").iterdir())) >= 2)
    with paused(pids):
        os.kill(watching.pid, signal.SIGKILL)
        watching.communicate()
        (before,) = (run for run in cli.status()["extractions"] if run["running"])
        other = cli.run(*extract(store), "--tries", "2", code=7)
        assert "another extraction writes into" in other
        again = cli.start(*extract(store))
        assert again.stderr is not None
        while "runs already" not in (line := again.stderr.readline()):
            assert line, "it ended without finding the run"
    out, said = again.communicate(timeout=60)
    assert again.returncode == 0, said
    assert json.loads(out)["stored"] == N_SAMPLES
    (after,) = (run for run in cli.status()["extractions"] if run["store"] == str(store))
    assert (after["number"], after["process"]) == (1, before["process"])
    assert samples(store) == samples(workplace.root / "store 1")


def test_a_server_that_dies_in_the_middle_is_started_again(cli: Cli, workplace: Workplace) -> None:
    """By the extraction that finds it gone; whoever stopped the server on purpose would not want that."""
    pids = slow_server(cli, workplace)
    store = workplace.root / "store 5"
    watching = cli.start(*extract(store))
    wait_for(lambda: (store / "samples").is_dir() and len(list((store / "samples").iterdir())) >= 2)
    os.kill(pids[0], signal.SIGKILL)
    out, said = watching.communicate(timeout=120)
    assert watching.returncode == 0, said
    assert json.loads(out)["stored"] == N_SAMPLES
    assert samples(store) == samples(workplace.root / "store 1")
    after = cli.status()["server"]
    assert (after["state"], after["restarts_left"]) == ("ready", 2)
    assert set(after["pids"]).isdisjoint(pids) and not any(map(lives, pids))
    assert "environment" not in json.dumps(after)


def test_ten_cut_connections_lose_nothing(cli: Cli, workplace: Workplace, test_node: TestNode) -> None:
    pids = slow_server(cli, workplace)
    store = workplace.root / "store 3"
    dice, cuts = random.Random(11), 0
    watching = cli.start(*extract(store))
    wait_for((store / "samples").is_dir)
    while cuts < 10:
        with paused(pids):
            wait_for(lambda: test_node.node.connections())
            time.sleep(dice.uniform(0.0, 0.9))
            cuts += bool(dice.choice((test_node.node, test_node.jump)).cut())
    out, said = watching.communicate(timeout=120)
    assert watching.returncode == 0, said
    assert said.count("connecting again") >= 2
    assert json.loads(out)["stored"] == N_SAMPLES
    assert samples(store) == samples(workplace.root / "store 1")


def test_an_extraction_is_stopped_and_goes_on_later(cli: Cli, workplace: Workplace) -> None:
    slow_server(cli, workplace)
    store = workplace.root / "store 4"
    watching = cli.start(*extract(store))
    wait_for(lambda: (store / "samples").is_dir() and len(list((store / "samples").iterdir())) >= 2)
    cli.run("stop", "--node", NAME, "--extraction")
    out, _ = watching.communicate(timeout=60)
    assert watching.returncode == 130
    stored = json.loads(out)["stored"]
    assert 0 < stored < N_SAMPLES
    assert cli.status()["server"]["state"] == "ready"
    assert cli.run(*extract(store))["already_stored"] == stored


def test_another_tree_on_the_node_is_named(cli: Cli, workplace: Workplace) -> None:
    path = workplace.sglang / PACKAGE_ROOT / "srt/models/llama.py"
    before = path.read_bytes()
    path.write_bytes(before + b"# changed\n")
    fresh = workplace.root.parent / "fresh root"
    fresh.mkdir(mode=0o700)
    workplace.node.own(fresh)
    text = tables(workplace)
    text["node"] = text["node"].replace(quoted(workplace.root), quoted(fresh))
    workplace.write_profile(cli.folder / "nodes" / f"{NAME}.toml", 0, **text)
    try:
        said = cli.run("serve", "--node", NAME, "--detach", code=3)
        assert "1 files differ, python/sglang/srt/models/llama.py among them" in said
        assert "1 files are not those of 0.5.9" in cli.run("node", "check", NAME, code=1)
        assert not list((fresh / "trees").glob("*")) if (fresh / "trees").exists() else True
    finally:
        path.write_bytes(before)


def test_a_changed_tree_of_ours_is_not_served(cli: Cli, workplace: Workplace) -> None:
    cli.run("serve", "--node", NAME, "--detach")
    cli.run("stop", "--node", NAME)
    (tree,) = (path for path in (workplace.root / "trees").iterdir() if path.is_dir())
    changed = tree / PACKAGE_ROOT / "srt/server_args.py"
    before = changed.read_bytes()
    changed.write_bytes(before + b"\n")
    try:
        assert "is not what the patch makes" in cli.run("serve", "--node", NAME, "--detach", code=5)
    finally:
        changed.write_bytes(before)


def test_a_missing_shard_is_found_before_the_load(cli: Cli, workplace: Workplace) -> None:
    index = workplace.model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    try:
        said = cli.run("serve", "--node", NAME, "--detach", code=2)
        assert "model-2.safetensors is missing" in said
        assert "model-2.safetensors is missing" in cli.run("node", "check", NAME, code=1)
    finally:
        index.unlink()


def test_check_judges_the_real_node(cli: Cli, workplace: Workplace) -> None:
    """This machine as the node: no torch in its bare Python, and plans that it cannot keep."""
    text = tables(workplace, storage=f"spool = {quoted(workplace.root / 's')}\nstore = {quoted(workplace.root / 't')}\n"
                                     'spool_bytes = "900T"\nstore_bytes = "1M"')  # fmt: skip
    workplace.write_profile(cli.folder / "nodes" / f"{NAME}.toml", 0, **text)
    found = cli.run("node", "check", NAME, "--json", code=1)
    verdicts = {line["check"]: line["verdict"] for line in found["checks"]}
    assert not found["ready"]
    assert (verdicts["torch"], verdicts["spool"], verdicts["store"]) == ("fail", "fail", "ok")
    assert {verdicts[name] for name in ("ssh", "clock", "python", "sglang", "model", "port", "flags")} == {"ok"}
    assert all(line["remedy"] for line in found["checks"] if line["verdict"] == "fail")


def test_a_node_that_cannot_be_reached_is_a_failed_line(cli: Cli, workplace: Workplace) -> None:
    workplace.node.add_host("dead", free_port())
    text = tables(workplace, ssh=f'host = "dead"\nconfig = "{workplace.node.config}"')
    workplace.write_profile(cli.folder / "nodes" / "dead.toml", 0, **text)
    found = cli.run("node", "check", "dead", "--json", code=6)
    (line,) = found["checks"]
    assert (line["check"], line["verdict"]) == ("ssh", "fail")
    assert "nothing listens there" in line["detail"]


def test_explain_shows_where_each_flag_is_from(cli: Cli) -> None:
    found = cli.run("serve", "--node", NAME, "--explain", "--json", "--", "--log-level", "debug")
    origins = {row["words"][0]: row["origin"] for row in found["flags"]}
    assert (origins["--disable-radix-cache"], origins["--port"], origins["--log-level"]) == (
        "hazard",
        "profile",
        "user",
    )
    assert "given after --" in cli.run("serve", "--node", NAME, "--explain", "--", "--log-level", "debug")
    assert "is refused" in cli.run("serve", "--node", NAME, "--explain", "--", "--enable-two-batch-overlap", code=2)


@pytest.fixture
def small_disk(workplace: Workplace) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = workplace.node.folder / "small disk"
    folder.mkdir(exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted here (it takes root)")
    workplace.node.own(folder)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_runs_full_in_the_middle(cli: Cli, workplace: Workplace, small_disk: Path) -> None:
    slow_server(cli, workplace)
    store, filler = small_disk / "store", small_disk / "filler"
    watching = cli.start(*extract(store), "--reserve", "0")
    wait_for(lambda: (store / "samples").is_dir() and len(list((store / "samples").iterdir())) >= 2)
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    _, said = watching.communicate(timeout=100)
    assert watching.returncode == 7, said
    assert "on the node: " in said
    assert "No space left on device" in said
    stored = len(samples(store))
    assert 0 < stored < N_SAMPLES
    filler.unlink()
    summary = cli.run(*extract(store), "--reserve", "0")
    assert summary["complete"]
    assert samples(store) == samples(workplace.root / "store 1")


def test_a_root_without_room_leaves_no_tree(cli: Cli, workplace: Workplace, small_disk: Path) -> None:
    with contextlib.suppress(OSError):
        (small_disk / "filler").write_bytes(bytes((2 << 20) - (150 << 10)))
    text = tables(workplace)
    text["node"] = text["node"].replace(quoted(workplace.root), quoted(small_disk))
    workplace.write_profile(cli.folder / "nodes" / f"{NAME}.toml", 0, **text)
    process = cli.start("serve", "--node", NAME, "--detach")
    _, said = process.communicate(timeout=60)
    assert process.returncode in (5, 6), said
    assert "No space left on device" in said
    (small_disk / "filler").unlink()
    assert not [path for path in small_disk.glob("trees/*") if path.is_dir()]
    workplace.write_profile(cli.folder / "nodes" / f"{NAME}.toml", 0, **tables(workplace))
