"""What `node check` makes of what it finds; the finding itself is tried on real folders and a real ssh elsewhere."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from auxtap.node.checks import FAIL, OK, WARN, CheckLine, judge_collective, judge_facts
from auxtap.node.flags import HazardFlag
from auxtap.node.hardware import backend_problems
from auxtap.node.library import copy_starting_point
from auxtap.node.node_profile import NodeProfile, read_profile
from auxtap.node.patch import NodeSource

GIB = 1 << 30
SOURCE = NodeSource("0.5.9", {"python/sglang/srt/x.py": "0" * 64}, (HazardFlag("--disable-radix-cache", "h", "r"),))
GPU = {
    "index": "0", "name": "NVIDIA RTX PRO 6000 Blackwell", "memory_mib": 97887, "used_mib": 3, "driver": "580.1",
    "capability": "12.0",
}  # fmt: skip
DISK = {"exists": True, "writable": True, "at": "/data", "free_bytes": 4000 * GIB, "total_bytes": 8000 * GIB}
GOOD: dict[str, Any] = {
    "python": {"version": "3.11.7", "torch": {"version": "2.9.1", "cuda": "12.8", "gpus": 8}},
    "sglang": {
        "package": "/s", "release": "0.5.9", "differing": [], "commit": "a" * 40, "dirty": [], "tags": ["v0.5.9"],
    },
    "gpus": {"found": [{**GPU, "index": str(number)} for number in range(8)], "why": ""},
    "disks": {
        "spool": {**DISK, "path": "/dev/shm/s", "device": 1, "free_bytes": 300 * GIB},
        "store": {**DISK, "path": "/data/store", "device": 2},
        "root": {**DISK, "path": "/home/me/.auxtap-node", "device": 2},
    },
    "port": {"free": True, "owner": ""},
    "server": {"state": "none"},
    "model": {"depth": 61, "architecture": "Kimi", "shards": 64, "bytes": 555 * GIB, "problems": []},
    "kills_on_logout": False,
    "memory_bytes": 500 * GIB,
}  # fmt: skip


@pytest.fixture
def profile(tmp_path: Path) -> NodeProfile:
    path = copy_starting_point("mine", "kimi-k25-8x-rtx-pro-6000", tmp_path)
    text = path.read_text().replace('host = "CHANGE-ME"', 'host = "gpu"').replace("CHANGE-ME", "/some/where")
    path.write_text(text)
    return read_profile(path)


def judge(profile: NodeProfile, changes: dict[str, Any]) -> dict[str, CheckLine]:
    facts = copy.deepcopy(GOOD)
    for path, value in changes.items():
        *parents, last = path.split("/")
        place: Any = facts
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[last] = value
    return {line.name: line for line in judge_facts(profile, SOURCE, facts)}


def test_a_good_node_is_ok_in_every_line(profile: NodeProfile) -> None:
    lines = judge(profile, {})
    assert {line.verdict for line in lines.values()} == {OK}
    assert "8x NVIDIA RTX PRO 6000" in lines["gpus"].detail
    assert "69 GiB of weights a GPU" in lines["weights"].detail


@pytest.mark.parametrize(
    ("changes", "name", "verdict", "detail"),
    [
        ({"python": {"error": "No such file"}}, "python", FAIL, "No such file"),
        ({"python/version": "3.9.2"}, "python", FAIL, "3.9.2"),
        ({"python/torch": {"error": "No module named torch"}}, "torch", FAIL, "No module"),
        ({"python/torch/gpus": 0}, "torch", FAIL, "sees 0 GPUs of 8"),
        ({"sglang": {"error": "not an SGLang tree"}}, "sglang", FAIL, "not an SGLang tree"),
        ({"sglang/differing": ["a.py"], "sglang/release": "0.5.10"}, "sglang", FAIL, "says it is 0.5.10; 1 files"),
        ({"sglang/dirty": ["python/sglang/x.json"]}, "checkout", WARN, "with local changes: python/sglang/x.json"),
        ({"sglang/commit": None, "sglang/why": "the node has no git"}, "checkout", OK, "the node has no git"),
        ({"gpus": {"found": [GPU], "why": ""}}, "gpus", FAIL, "1 of 8"),
        ({"gpus": {"found": [], "why": "nvidia-smi: not found"}}, "gpus", FAIL, "0 of 8 (nvidia-smi: not found)"),
        ({"gpus/found": [{**GPU, "name": "H200", "capability": "9.0"}] * 8}, "gpus", FAIL, "written for RTX PRO 6000"),
        ({"gpus/found": [{**GPU, "memory_mib": 48000}] * 8}, "gpus", FAIL, "it plans with 94 GiB each"),
        ({"gpus/found/3/used_mib": 40000}, "gpu memory", WARN, "3: 39 GiB"),
        ({"gpus/found/3/name": "other"}, "gpus", FAIL, "not all alike"),
        ({"model/bytes": 800 * GIB}, "weights", FAIL, "100 GiB of weights a GPU"),
        ({"model/bytes": 640 * GIB}, "weights", WARN, "80 GiB of weights a GPU"),
        ({"model/problems": ["x-3.safetensors is missing"]}, "model", FAIL, "x-3.safetensors is missing"),
        ({"model": {"error": "there is no folder /m", "bytes": 0, "depth": None}}, "model", FAIL, "no folder"),
        ({"model/depth": 8}, "layers", FAIL, "names 59, and the model has 8 blocks"),
        ({"disks/spool/free_bytes": 10 * GIB}, "spool", FAIL, "200.0 GiB are planned"),
        ({"disks/store/free_bytes": 10 * GIB}, "store", FAIL, "1000.0 GiB are planned"),
        ({"disks/store/writable": False}, "store", FAIL, "not writable"),
        ({"disks/spool/device": 2, "disks/spool/free_bytes": 1100 * GIB}, "spool and store", FAIL, "share one"),
        ({"memory_bytes": 100 * GIB}, "memory", FAIL, "100.0 GiB"),
        ({"disks/spool/mount": {"kind": "tmpfs", "options": "rw,size=9g"}}, "spool pages", WARN, "small pages"),
        ({"disks/spool/mount": {"kind": "tmpfs", "options": "rw,huge=never"}}, "spool pages", WARN, "small pages"),
        ({"disks/spool/mount": {"kind": "tmpfs", "options": "rw,huge=within_size"}}, "spool pages", OK, "within_size"),
        ({"port": {"free": False, "owner": " (pid 7, nginx)"}}, "port", FAIL, "not ours (pid 7, nginx)"),
        ({"port/free": False, "server": {"state": "ready", "port": 30000}}, "port", WARN, "our own server"),
        ({"server": {"state": "leftover", "pids": [4, 5]}}, "port", FAIL, "its processes 4, 5 are not"),
        ({"kills_on_logout": True}, "logout", FAIL, "logind"),
    ],
)  # fmt: skip
def test_each_trouble_has_its_line_and_a_remedy(
    profile: NodeProfile, changes: dict[str, Any], name: str, verdict: str, detail: str
) -> None:
    line = judge(profile, changes)[name]
    assert line.verdict == verdict
    assert detail in line.detail
    assert line.remedy or verdict == OK


def test_backends_that_an_architecture_cannot_run(profile: NodeProfile) -> None:
    assert not backend_problems({"--attention-backend": "triton"}, "12.0")
    assert "SM80 to SM90 only" in backend_problems({"--attention-backend": "fa3"}, "12.0")[0]
    assert "MLA prefill fails" in backend_problems({"--prefill-attention-backend": "trtllm_mla"}, "12.0")[0]
    assert not backend_problems({"--attention-backend": "trtllm_mla"}, "10.0")
    assert not backend_problems({"--attention-backend": "fa3"}, "")
    wrong = dataclasses.replace(profile, arguments=("--attention-backend", "trtllm_mha"))
    assert judge(wrong, {})["backends"].verdict == FAIL
    refused = dataclasses.replace(profile, arguments=("--enable-two-batch-overlap",))
    assert judge(refused, {})["flags"].verdict == FAIL


def test_a_hanging_collective_says_what_to_try() -> None:
    assert judge_collective(8, {"seconds": 0.002, "whole_s": 9.0}).verdict == OK
    assert judge_collective(8, {"seconds": 3.0, "whole_s": 9.0}).verdict == WARN
    assert judge_collective(8, {"error": "NCCL error"}).verdict == FAIL
    hung = judge_collective(8, {"hung": True, "timeout_s": 60.0})
    assert hung.verdict == FAIL
    assert "NCCL_P2P" in hung.remedy
