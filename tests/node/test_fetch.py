"""A node's store brought here by ssh, over cut connections and kills, and what is refused."""

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from auxtap.extraction.audit.integrity import check_store
from auxtap.tests.node.bare_node import make_bare_workplace, tables
from auxtap.tests.node.conftest import Cli, TestNode, Workplace, samples, wait_for
from auxtap.verification.engine.engine_proof import write_dataset

pytestmark = pytest.mark.slow

NAME, N_SAMPLES = "origin", 150


@pytest.fixture(scope="module")
def workplace(test_node: TestNode, node_python: Path) -> Workplace:
    return make_bare_workplace(test_node, node_python, NAME)


@pytest.fixture(scope="module")
def origin(workplace: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store on the node, one of its samples failed."""
    cli = Cli(tmp_path_factory.mktemp("origin"), NAME)
    write_profile(cli, workplace)
    dice = random.Random(5)
    write_dataset(cli.folder / "dataset.jsonl", [dice.randint(1, 200) for _ in range(N_SAMPLES)])
    cli.run("serve", "--node", NAME, "--detach")
    store = workplace.root / "store one"
    cli.run("extract", "dataset.jsonl", "--node", NAME, "--out", str(store), "--concurrency", "8", "--canary", "0")
    cli.run("stop", "--node", NAME)
    yield store


def write_profile(cli: Cli, workplace: Workplace) -> None:
    text = tables(workplace, environment="")
    workplace.write_profile(cli.folder / "nodes" / f"{NAME}.toml", 0, **text)


@pytest.fixture
def cli(workplace: Workplace, tmp_path: Path) -> Cli:
    cli = Cli(tmp_path, NAME)
    write_profile(cli, workplace)
    return cli


def lines(store: Path) -> list[Any]:
    return sorted(map(json.loads, (store / "ledger.jsonl").read_text().splitlines()), key=lambda line: line["index"])


def test_a_store_is_brought_here_once(cli: Cli, origin: Path) -> None:
    here = cli.folder / "here"
    found = cli.run("fetch", NAME, "here", "--json")
    assert (found["n_lines"], found["n_files"]) == (N_SAMPLES, N_SAMPLES)
    assert (samples(here), lines(here)) == (samples(origin), lines(origin))
    report = check_store(here)
    assert (report.findings, report.stored) == ((), N_SAMPLES)
    victim = sorted((here / "samples").iterdir())[3]
    victim.write_bytes(victim.read_bytes()[:-1])
    assert cli.run("fetch", NAME, "here", "--json")["n_files"] == 1
    assert samples(here) == samples(origin)


def test_cut_connections_and_kills_lose_nothing(cli: Cli, origin: Path, test_node: TestNode) -> None:
    here, dice = cli.folder / "here", random.Random(2)
    for n_files in (30, 80):
        fetching = cli.start("fetch", NAME, "here")
        wait_for(lambda n=n_files: (here / "samples").is_dir() and len(list((here / "samples").iterdir())) >= n)
        os.kill(fetching.pid, signal.SIGKILL)
        fetching.communicate()
    fetching = cli.start("fetch", NAME, "here", "--json")
    for n_files in (82, 90, 100, 120, 140):
        wait_for(lambda n=n_files: fetching.poll() is not None or len(list((here / "samples").iterdir())) >= n)
        dice.choice((test_node.node, test_node.jump)).cut()
    out, said = fetching.communicate(timeout=120)
    assert fetching.returncode == 0, said
    assert json.loads(out)["n_lines"] == N_SAMPLES
    assert (samples(here), lines(here)) == (samples(origin), lines(origin))
    assert check_store(here).findings == ()


def test_a_file_that_is_half_here_is_gone_on_with_and_a_damaged_one_refused(
    cli: Cli, workplace: Workplace, origin: Path
) -> None:
    copy = workplace.root / "damaged"
    shutil.copytree(origin, copy)
    names = sorted(path.name for path in (copy / "samples").iterdir())
    workplace.node.own(copy)
    here = cli.folder / "here"
    (here / "samples").mkdir(parents=True)
    whole = (copy / "samples" / names[0]).read_bytes()
    (here / "samples" / f".{names[0]}.fetch").write_bytes(whole[:100])
    data = bytearray((copy / "samples" / names[70]).read_bytes())
    data[-9] ^= 1
    (copy / "samples" / names[70]).write_bytes(data)
    said = cli.run("fetch", NAME, "here", "--store", str(copy), code=8)
    assert f"samples/{names[70]} of {copy} does not have the digest of its ledger line" in said
    assert (here / "samples" / names[0]).read_bytes() == whole
    assert len(lines(here)) == 64  # those of the files asked for before
    (copy / "samples" / names[70]).write_bytes((origin / "samples" / names[70]).read_bytes())
    found = cli.run("fetch", NAME, "here", "--store", str(copy), "--json")
    assert found["n_files"] < N_SAMPLES - 64 + 1
    assert samples(here) == samples(origin)


def test_what_is_refused(cli: Cli, workplace: Workplace, origin: Path) -> None:
    assert "is no store" in cli.run("fetch", NAME, "here", "--store", str(workplace.root / "none"), code=7)
    assert "no absolute path" in cli.run("fetch", NAME, "here", "--store", "some/where", code=2)
    shutil.rmtree(cli.folder / "here")
    (cli.folder / "other").mkdir()
    (cli.folder / "other" / "thesis.tex").touch()
    assert "is not empty: it holds thesis.tex" in cli.run("fetch", NAME, "other", code=7)
    cli.run("fetch", NAME, "here")
    second = workplace.root / "second"
    shutil.copytree(origin, second)
    manifest = json.loads((second / "manifest.json").read_text())
    (second / "manifest.json").write_text(json.dumps({**manifest, "run": "0" * 8}))
    subprocess.run(["chmod", "-R", "u+rwX", str(second)], check=True)
    workplace.node.own(second)
    assert "holds another store" in cli.run("fetch", NAME, "here", "--store", str(second), code=7)
