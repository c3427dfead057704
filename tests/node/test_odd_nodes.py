"""Nodes without git, with an unusual clock, with an nvidia-smi that lists GPUs, fails or never answers."""

import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from auxtap.node.agent import node_facts
from auxtap.tests.node.bare_node import make_bare_workplace, tables
from auxtap.tests.node.conftest import Cli, TestNode, Workplace, quoted
from auxtap.verification.engine.engine_proof import write_dataset

pytestmark = pytest.mark.slow

NAME = "odd"
LISTING = "0, NVIDIA B200, 183359, 4, 580.95, 10.0"


@pytest.fixture(scope="module")
def workplace(test_node: TestNode, node_python: Path) -> Workplace:
    return make_bare_workplace(test_node, node_python, "odd")


@pytest.fixture
def cli(workplace: Workplace, tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path, NAME)
    yield cli
    cli.run("stop", "--node", NAME)


def check(cli: Cli, workplace: Workplace, **more: str) -> dict[str, dict[str, Any]]:
    """Write a profile and return the lines of its check by name."""
    workplace.write_profile(cli.folder / "nodes" / f"{NAME}.toml", 0, **tables(workplace, **more))
    found = cli.run("node", "check", NAME, "--json", code=1)  # it has no torch
    return {line["check"]: line for line in found["checks"]}


def test_a_checkout_on_a_node_without_git(cli: Cli, workplace: Workplace, test_node: TestNode) -> None:
    """The commit cannot be told; the files are compared all the same."""
    assert (workplace.sglang.parent / "here" / ".git").exists()
    assert not (test_node.folder / "programs" / "git").exists()
    node = tables(workplace)["node"].replace(quoted(workplace.sglang), quoted(workplace.sglang.parent / "here"))
    lines = check(cli, workplace, node=node)
    assert lines["sglang"]["verdict"] == "ok"
    assert "the node has no git; files were compared instead" in lines["checkout"]["detail"]


def test_a_node_whose_clock_is_an_hour_slow(cli: Cli, workplace: Workplace) -> None:
    """A Python that reads an earlier time plays it; the whole job does not mind, and the check says so."""
    python = workplace.sglang.parent / "slow-python"
    python.write_text(
        "#!/bin/sh\n"
        f'[ "$1 $2" = "-I -c" ] || exec {workplace.python} "$@"\n'
        "code=$3; shift 3\n"
        f'exec {workplace.python} -I -c "import time; now = time.time; time.time = lambda: now() - 3600\n$code" "$@"\n'
    )
    python.chmod(0o755)
    node = tables(workplace)["node"].replace(quoted(workplace.python), quoted(python))
    lines = check(cli, workplace, node=node)
    assert lines["clock"]["verdict"] == "warn"
    # Less by what the question itself takes.
    assert re.search(r"is 3[56]\d\d s behind this machine's", lines["clock"]["detail"]) and lines["clock"]["remedy"]
    dice = random.Random(5)
    write_dataset(cli.folder / "dataset.jsonl", [dice.randint(1, 200) for _ in range(12)])
    assert 0 < cli.run("serve", "--node", NAME, "--detach", "--json")["ready_s"] < 600
    summary = cli.run("extract", "dataset.jsonl", "--node", NAME, "--json", "--canary", "0")
    assert (summary["complete"], summary["stored"]) == (True, 12)


@pytest.fixture
def nvidia_smi(test_node: TestNode) -> Iterator[Path]:
    """A program of that name on the node's PATH, for the test to write."""
    path = test_node.folder / "programs" / "nvidia-smi"
    yield path
    path.unlink(missing_ok=True)


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_gpus_are_read_from_nvidia_smi(cli: Cli, workplace: Workplace, nvidia_smi: Path) -> None:
    """The arguments must be those that the program is known to take."""
    wanted = "--query-gpu=index,name,memory.total,memory.used,driver_version,compute_cap"
    rows = "\\n".join(LISTING.replace("0,", f"{number},", 1) for number in range(2))
    write_program(nvidia_smi, f'[ "$*" = "{wanted} --format=csv,noheader,nounits" ] || exit 9\nprintf "{rows}\\n"')
    node = tables(workplace)["node"] + "\ncpu = false"
    more = {"parallel": "tp = 2", "hardware": 'gpu = "B200"\ncompute_capability = "10.0"\nmemory_gib = 178'}
    server = tables(workplace)["server"] + '\narguments = ["--attention-backend", "fa3"]'
    lines = check(cli, workplace, node=node, server=server, **more)
    assert lines["gpus"]["verdict"] == "ok"
    assert "2x NVIDIA B200, 179 GiB, compute capability 10.0, driver 580.95" in lines["gpus"]["detail"]
    assert lines["backends"]["verdict"] == "fail" and "fa3 on SM100" in lines["backends"]["detail"]
    write_program(nvidia_smi, "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    lines = check(cli, workplace, node=node, **more)
    assert lines["gpus"]["verdict"] == "fail"
    assert "0 of 2 (Failed to initialize NVML: Driver/library version mismatch)" in lines["gpus"]["detail"]


def test_an_nvidia_smi_that_never_answers_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "nvidia-smi", f"echo $$ >{tmp_path / 'pid'}\nexec sleep 987")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(node_facts, "COMMAND_S", 0.5)
    began = time.monotonic()
    found = node_facts._gpus()
    assert (found["found"], found["why"]) == ([], "no answer within 0.5 s")
    assert time.monotonic() - began < 60
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
