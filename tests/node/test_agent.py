"""The agent: one file, always the same, that needs Python 3.10 and what SGLang brings; its pieces on real processes."""

import ast
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from auxtap.core.errors import PatchError, ServerError, SourceError, WorktreeError
from auxtap.core.files import sha256_bytes
from auxtap.core.source_tree import PACKAGE_ROOT
from auxtap.node.agent.detached import start_detached
from auxtap.node.agent.main import NEEDED
from auxtap.node.agent.node_facts import look_at_model, time_collective
from auxtap.node.agent.node_folder import NodeFolder
from auxtap.node.agent.node_tree import TreePlan, digest_package, make_tree
from auxtap.node.agent_file import agent_members, build_agent
from auxtap.node.node_profile import NodeProfile, read_profile
from auxtap.node.remote_agent import RemoteAgent, remote_quote
from auxtap.node.ssh import SshConnection
from auxtap.rewriters.patch.diff import PatchSet, write_patch
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.serving.processes import ProcessMark, end_session, is_alive, mark_process, session_members
from auxtap.tests.extraction.conftest import FakeServer, FakeTap
from auxtap.tests.node.conftest import TestNode, lives, wait_for
from auxtap.tests.shaped import RELEASE, shaped_files, shaped_tree, write_files

ROOT = Path(__file__).resolve().parents[2]
# Imported where they are used, when they are there.
OPTIONAL = {"xxhash", "torch", "transformers", "safetensors", "fsspec", "prometheus_client", "pyarrow"}


def test_the_same_package_makes_the_same_file() -> None:
    first = build_agent()
    build_agent.cache_clear()
    assert build_agent() == first
    assert first.digest == sha256_bytes(first.data)


@pytest.mark.slow
def test_every_module_is_python_3_10_and_needs_nothing_else() -> None:
    """New imports in extraction or core show up here, before a node lacks them."""
    for member in agent_members(ROOT):
        path = ROOT / member
        tree = ast.parse(path.read_bytes(), str(path), feature_version=(3, 10))
        # The functions of `__init__` are for notebooks; nothing on a node calls them.
        if member.is_relative_to("serving/cpu_shim") or str(member) == "__init__.py":
            continue
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                held = top == "auxtap" and _is_member(name)
                assert held or top in sys.stdlib_module_names | OPTIONAL | set(NEEDED), f"{member} imports {name}"


@pytest.mark.slow
def test_nothing_of_later_pythons_is_used() -> None:
    """By vermin, which knows since when Python has what."""
    files = [str(ROOT / member) for member in agent_members(ROOT)]
    command = [str(Path(sys.executable).with_name("vermin")), "--format", "parsable", *files]
    out = subprocess.run(command, capture_output=True, text=True).stdout
    found = set()
    for line in out.splitlines():
        *_, python3, feature = line.split(":", 5)
        version = python3.lstrip("!~")
        if feature and version and tuple(map(int, version.split("."))) > (3, 10):
            found.add(feature.split("'")[1])
    assert found == set()


def _is_member(name: str) -> bool:
    if name == "auxtap":
        return True
    inner = PurePosixPath(*name.split(".")[1:])
    members = agent_members(ROOT)
    return inner.with_suffix(".py") in members or inner / "__init__.py" in members


@pytest.fixture
def fake_server(tmp_path: Path) -> Iterator[FakeServer]:
    spool = tmp_path / "spool"
    spool.mkdir(mode=0o700)
    tap = FakeTap(spool)
    tap.announce()
    server = FakeServer(tap)
    yield server
    server.stop()


def run_on_node(tmp_path: Path, server: FakeServer, n_samples: int, options: dict[str, object]) -> list[dict[str, Any]]:
    """Extract with the agent's file alone; return what it told."""
    digest = "d" * 64
    root = tmp_path / "root"
    (root / "datasets").mkdir(parents=True)
    lines = [json.dumps({"id": f"s{number}", "input_ids": [number + 1] * (number + 1)}) for number in range(n_samples)]
    (root / "datasets" / f"{digest}.jsonl").write_text("\n".join(lines) + "\n")
    agent = tmp_path / "agent.pyz"
    agent.write_bytes(build_agent().data)
    job = {"dataset": digest, "url": server.url, "spool": str(server.tap.spool), "store": str(tmp_path / "store"),
           "options": options}  # fmt: skip
    program = (
        f"import sys, json; sys.path.insert(0, {str(agent)!r})\n"
        "from pathlib import Path\n"
        "from auxtap.node.agent import main, node_run\n"
        "from auxtap.node.agent.node_folder import NodeFolder\n"
        f"assert node_run.__file__.startswith({str(agent)!r})\n"
        f"print(node_run.run_here(NodeFolder(Path({str(root)!r})), json.loads({json.dumps(job)!r}), "
        f"Path({str(tmp_path / 'events')!r})))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]


@pytest.mark.slow
def test_extraction_runs_from_the_agents_file(tmp_path: Path, fake_server: FakeServer) -> None:
    """With the connection cut, refused and answered late on the way."""
    server, tap = fake_server, fake_server.tap
    tap.faults.update({1: ["500"], 2: ["drop"], 3: ["half_body"], 4: ["nan"], 5: ["late"]})
    options: dict[str, object] = {"concurrency": 3, "max_tries": 3, "backoff_s": 0.01, "parts_timeout_s": 5.0}
    ended = run_on_node(tmp_path, server, 12, options)[-1]
    # What the network did is made up for; the NaN is found, and its sample not stored.
    assert ended["summary"]["stored"] == 11, ended
    (bad,) = ended["summary"]["not_stored"]
    assert (bad["index"], "not finite" in bad["reason"] or "NaN" in bad["reason"]) == (4, True), bad
    assert len(server.requests) > 12


@pytest.mark.slow
def test_the_canary_comes_first_and_nothing_is_extracted_when_it_fails(tmp_path: Path, fake_server: FakeServer) -> None:
    fake_server.tap.faults.update({1: ["nan"]})
    options: dict[str, object] = {"canary": 4, "timeout_s": 30.0, "parts_timeout_s": 5.0}
    *said, ended = run_on_node(tmp_path, fake_server, 12, options)
    assert ended["code"] == 8, ended
    assert "the canary on http" in ended["error"]
    assert "NaN" in ended["error"]
    assert {"said": "canary: one prompt at a time"} in said
    assert not (tmp_path / "store").exists()


def test_a_python_without_sglangs_packages_is_named(tmp_path: Path) -> None:
    """The agent needs what serves SGLang; a Python without is no silent success and no traceback."""
    agent = tmp_path / "agent.pyz"
    agent.write_bytes(build_agent().data)
    program = (
        f"import io, sys; sys.path.insert(0, {str(agent)!r})\n"
        "from auxtap.node.agent.main import serve_request\n"
        f"request = {{'root': {str(tmp_path)!r}, 'command': 'hello', 'arguments': {{}}, 'n_bytes': 0}}\n"
        "serve_request(request, io.BytesIO(), launcher='')\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60)
    answer = json.loads(done.stdout.partition("auxtap ")[2])
    assert f"on the node lacks {', '.join(NEEDED)}" in answer["error"], done
    assert "node.python" in answer["hint"]
    assert answer["code"] == 6


def shaped_patch() -> PatchSet:
    tree = shaped_tree()
    return write_patch(tree, plan_capture(tree, ("deepseek", "llama"), (3, 31, 59)))


def tree_plan(source: Path, patch_set: PatchSet) -> TreePlan:
    after = {str(change.path): change.after_sha256 for change in patch_set.changes}
    after |= {str(file.path): sha256_bytes(file.data) for file in patch_set.new_files}
    files = {str(path): sha256_bytes(data) for path, data in shaped_tree().files.items()}
    return TreePlan(source, RELEASE, patch_set.patch, patch_set.digest, "s" * 64, files, after)


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (b"", "the patch is empty"),
        (b"diff --git a/x b/x\n", "'index' was expected"),
        (b"diff --git a/p/../../x b/p/../../x\nindex 1..2\n@@ -1,0 +2 @@\n+y\n", "leaves the tree"),
        (b"diff --git a/x b/x\nnew file mode 100644\nindex 1..2\n", "x is outside python/sglang"),
        (
            b"diff --git a/python/sglang/a.py b/python/sglang/a.py\nindex 1..2\n@@ -1 +1 @@\n-x\n+y\n",
            "more than insert",
        ),
        (b"diff --git a/python/sglang/a.py b/python/sglang/a.py\ndeleted file mode 100644\n", "'index' was expected"),
        (
            b"diff --git a/python/sglang/srt/server_args.py b/python/sglang/srt/server_args.py\nindex 1..2\n"
            b"--- a/python/sglang/srt/server_args.py\n+++ b/python/sglang/srt/server_args.py\n"
            b"@@ -99998,0 +99999 @@\n+y\n",
            "has no line 99999",
        ),
    ],
)
def test_a_patch_that_does_more_is_refused(tmp_path: Path, patch: bytes, said: str) -> None:
    source, folder = tmp_path / "source", NodeFolder(tmp_path / "root")
    write_files(source, shaped_files())
    plan = dataclasses.replace(tree_plan(source, shaped_patch()), patch=patch, patch_digest=sha256_bytes(patch))
    with pytest.raises(PatchError, match=said):
        make_tree(plan, folder)
    assert not list(folder.trees.glob("*"))


def test_a_tree_is_made_once_and_checked_each_time(tmp_path: Path) -> None:
    source, folder = tmp_path / 'it\'s a "source"', NodeFolder(tmp_path / "root")
    write_files(source, shaped_files())
    (source / PACKAGE_ROOT / "kernels.so").write_bytes(b"\x7fELF")
    plan = tree_plan(source, shaped_patch())
    made = make_tree(plan, folder)
    tree = Path(made["tree"])
    assert made["made"]
    assert (tree / PACKAGE_ROOT / "kernels.so").read_bytes() == b"\x7fELF"
    assert digest_package(tree / PACKAGE_ROOT) == {**plan.files, **plan.after}
    assert digest_package(source / PACKAGE_ROOT) == plan.files
    assert not make_tree(plan, folder)["made"]
    (tree / PACKAGE_ROOT / "srt/auxtap/gate.py").unlink()
    with pytest.raises(WorktreeError, match=r"srt/auxtap/gate\.py differ"):
        make_tree(plan, folder)


def test_another_source_makes_no_tree(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", NodeFolder(tmp_path / "root")
    write_files(source, shaped_files())
    plan = tree_plan(source, shaped_patch())
    (source / PACKAGE_ROOT / "srt/models/more.py").write_text("x = 1\n")
    with pytest.raises(SourceError, match=r"1 files differ, python/sglang/srt/models/more\.py among them"):
        make_tree(plan, folder)
    assert not folder.trees.exists()
    with pytest.raises(SourceError, match="is not an SGLang tree"):
        make_tree(tree_plan(tmp_path / "none", shaped_patch()), folder)


def test_nothing_runs_that_is_not_on_record(tmp_path: Path) -> None:
    """When the record cannot be written, the process never becomes what it was to be."""
    ran = tmp_path / "ran"

    def refuse(mark: ProcessMark) -> None:
        raise OSError("no room for a record")

    with pytest.raises(OSError, match="no room"):
        start_detached(["touch", str(ran)], os.environ, log=tmp_path / "log", record=refuse)
    time.sleep(0.3)
    assert not ran.exists()
    mark = start_detached(["touch", str(ran)], os.environ, log=tmp_path / "log", record=lambda mark: None)
    wait_for(ran.exists)
    # Whoever starts a process meanwhile may have waited for it.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(mark.pid, 0)


@pytest.mark.slow
def test_a_session_is_stopped_whole_and_nothing_else(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "100"])
    script = "trap '' INT TERM; sleep 101 & setsid sleep 102 & wait"
    mark = start_detached(["/bin/sh", "-c", script], os.environ, log=tmp_path / "log", record=lambda mark: None)
    wait_for(lambda: len(session_members(mark)) == 3)
    members = session_members(mark)
    try:
        other_start = ProcessMark(mark.pid, mark.ticks + 1, mark.boot)
        assert not is_alive(other_start)
        assert session_members(other_start) == []
        assert session_members(ProcessMark(mark.pid, mark.ticks, "another boot")) == []
    finally:
        assert end_session(mark) == []
    assert not any(lives(member.pid) for member in members)
    assert is_alive(mark_process(bystander.pid))
    bystander.kill()
    bystander.wait()
    assert not is_alive(mark)


def test_a_models_files_are_judged_by_their_headers(tmp_path: Path) -> None:
    from auxtap.tests.node.bare_node import write_shard

    assert "there is no folder" in look_at_model(tmp_path / "none")["error"]
    assert "no config.json" in look_at_model(tmp_path)["error"]
    (tmp_path / "config.json").write_text('{"text_config": {"num_hidden_layers": 61}, "architectures": ["K"]}')
    assert look_at_model(tmp_path)["problems"] == ["there are no safetensors files"]
    for name in ("a", "b", "c"):
        write_shard(tmp_path / f"{name}.safetensors")
    found = look_at_model(tmp_path)
    assert (found["depth"], found["shards"], found["problems"]) == (61, 3, [])
    with (tmp_path / "b.safetensors").open("ab") as file:
        file.truncate(100)
    (tmp_path / "c.safetensors").write_bytes(b"\xff" * 20)
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "c.safetensors", "w": "d.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    problems = look_at_model(tmp_path)["problems"]
    assert [problem.split()[0][0] for problem in problems] == ["b", "c", "d"]
    assert problems[2] == "d.safetensors is missing"


def test_a_collective_that_hangs_is_ended(tmp_path: Path) -> None:
    """A Python that never ends plays the deadlock; it and what it started are gone afterwards."""
    hanging = tmp_path / "python"
    hanging.write_text(f"#!/bin/sh\nsleep 987 &\necho $! >{tmp_path / 'pid'}\nwait\n")
    hanging.chmod(0o755)
    asked = {"python": str(hanging), "ranks": 2, "cuda": False, "timeout_s": 0.5, "environment": {}}
    assert time_collective(NodeFolder(tmp_path / "root"), asked)["hung"]
    assert not lives(int((tmp_path / "pid").read_text()))


def test_paths_are_quoted_for_the_nodes_shell() -> None:
    assert remote_quote("~/it's here/python") == "\"$HOME\"/'it'\"'\"'s here/python'"
    assert remote_quote("/opt/py") == "/opt/py"


@pytest.fixture
def bare_profile(test_node: TestNode, node_python: Path, tmp_path: Path) -> NodeProfile:
    root = test_node.folder / f"root {tmp_path.name}"
    root.mkdir(mode=0o700)
    test_node.own(root)
    path = tmp_path / "x.toml"
    path.write_text(
        f'[ssh]\nhost = "node"\nconfig = "{test_node.config}"\n[node]\npython = "{node_python}"\nsglang = "/x"\n'
        f'root = "{root}"\n[model]\npath = "/x"\n[storage]\nspool = "/x"\nstore = "/x"\n'
    )
    return read_profile(path)


def connect(profile: NodeProfile, say: Callable[[str], None]) -> RemoteAgent:
    return RemoteAgent(profile, SshConnection(profile.ssh), say)


@pytest.mark.slow
def test_the_agent_is_sent_once_and_again_when_it_is_damaged(
    bare_profile: NodeProfile, say: Callable[[str], None], said: list[str]
) -> None:
    agent = connect(bare_profile, say)
    with agent.connection:
        assert agent.call("hello")["version"]
        agent.call("hello")
        assert len([line for line in said if "sending the agent" in line]) == 1
        file = Path(bare_profile.root) / "agent" / f"{build_agent().digest}.pyz"
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        assert agent.call("hello")["version"]
        assert len([line for line in said if "sending the agent" in line]) == 2
        assert file.read_bytes() == build_agent().data
    assert zipfile.ZipFile(BytesIO(build_agent().data)).testzip() is None


def test_a_shell_that_greets_does_no_harm(
    bare_profile: NodeProfile, test_node: TestNode, say: Callable[[str], None]
) -> None:
    if test_node.home == Path.home():
        pytest.skip("the node's user is this one, whose shell is left as it is")
    greeting = test_node.home / ".bashrc"
    before = greeting.read_bytes() if greeting.exists() else b""
    greeting.write_text('echo "Welcome to the {node}"; printf "%s" "no newline"\n')
    try:
        agent = connect(bare_profile, say)
        with agent.connection:
            assert agent.call("hello")["user"] == test_node.user
    finally:
        greeting.write_bytes(before)


def test_a_node_whose_name_holds_key_is_connected_to_again(
    bare_profile: NodeProfile, test_node: TestNode, say: Callable[[str], None], said: list[str]
) -> None:
    """Its server is down for a moment: the call waits until it is there again."""
    test_node.add_host("turkey-01", test_node.node.port)
    profile = dataclasses.replace(bare_profile, ssh=test_node.settings("turkey-01"))
    agent = connect(profile, say)
    with agent.connection:
        agent.call("hello")
        test_node.node.stop()
        begin_again = threading.Timer(1.0, test_node.node.start, (test_node.binary, test_node.user))
        begin_again.start()
        try:
            assert agent.call("hello")["version"]
        finally:
            begin_again.join()
    assert "the connection to turkey-01 was lost; connecting again" in said


def test_a_python_that_is_none_is_named(
    bare_profile: NodeProfile, test_node: TestNode, say: Callable[[str], None]
) -> None:
    agent = connect(dataclasses.replace(bare_profile, python="/no/such python"), say)
    with agent.connection, pytest.raises(ServerError, match="/no/such python on node ended with status 12") as caught:
        agent.call("hello")
    assert "Python 3.10" in (caught.value.hint or "")
