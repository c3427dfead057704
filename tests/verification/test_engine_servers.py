"""Real patched servers: what they refuse, what they leave behind, and how they end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from auxtap.checkout.worktree import AppliedWorktree
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import ServerError
from auxtap.serving.processes import session_members
from auxtap.serving.profile import LaunchSpec
from auxtap.verification.engine.fork_server import ForkServer

pytestmark = pytest.mark.engine
SpecMaker = Callable[..., LaunchSpec]
OURS = "aux1-0123abcd-0-1"


def generate(spec: LaunchSpec, rids: list[str], prompts: list[list[int]]) -> httpx.Response:
    body = {"input_ids": prompts, "rid": rids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    return httpx.post(f"{spec.url}/generate", json=body, timeout=60, trust_env=False)


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_rid_that_is_not_ours_leaves_no_trace(fork_server: ForkServer, make_spec: SpecMaker) -> None:
    spec = make_spec()
    assert spec.spool is not None
    with fork_server.serve(spec) as server:
        server.wait_ready(timeout_s=60)
        before = {path.name for path in spec.spool.iterdir()}
        theirs = ["somebody-elses", "../../aux1-0123abcd-0-1", "aux1-0123abcd-0-1\n", "aux1-0123abcd-00-1"]
        assert generate(spec, theirs, [[65, 66, 67]] * 4).status_code == 200
        assert generate(spec, [OURS, "not-ours"], [[65, 66, 67], [68]]).status_code == 200
        ready = spec.spool / f"{OURS}.pp0.dp0.ready"
        assert wait_for(ready.exists)
        after = {path.name for path in spec.spool.iterdir() if not path.name.startswith(".")}
    assert after - before - {name for name in after if name.startswith("stats-")} == {ready.name}
    assert not list(spec.spool.parent.parent.rglob(f"{OURS}*.tmp"))


@pytest.mark.parametrize("layers", [(8,), (2, 99)])
def test_a_layer_that_the_model_has_not_is_refused_at_the_start(
    fork_server: ForkServer, make_spec: SpecMaker, layers: tuple[int, ...]
) -> None:
    spec = make_spec(layers=layers)
    with (
        fork_server.serve(spec) as server,
        pytest.raises(ServerError, match=r"^auxtap: refused: "),
    ):
        server.wait_ready(timeout_s=60)
    assert session_members(server.pid) == []


def test_a_wrong_model_path_is_the_reason(fork_server: ForkServer, make_spec: SpecMaker, tmp_path: Path) -> None:
    with (
        fork_server.serve(make_spec(model_path=str(tmp_path / "none"))) as server,
        pytest.raises(ServerError, match=r"the server ended with status 1: .*none"),
    ):
        server.wait_ready(timeout_s=60)


def test_an_argument_that_sglang_does_not_know_is_the_reason(fork_server: ForkServer, make_spec: SpecMaker) -> None:
    with (
        fork_server.serve(make_spec(extra_arguments=("--no-such-option",))) as server,
        pytest.raises(ServerError, match="unrecognized arguments: --no-such-option"),
    ):
        server.wait_ready(timeout_s=60)


def test_a_second_server_on_the_same_spool_is_refused(fork_server: ForkServer, make_spec: SpecMaker) -> None:
    first = make_spec()
    with fork_server.serve(first) as server:
        server.wait_ready(timeout_s=60)
        second = replace(make_spec(), log=first.log.with_name("second.log"))
        with pytest.raises(ServerError, match="in use by a running server"), fork_server.serve(second):
            pass


def test_a_scheduler_that_dies_takes_the_server_with_it(fork_server: ForkServer, make_spec: SpecMaker) -> None:
    spec = make_spec(extra_arguments=("--pp-size", "2"))
    assert spec.spool is not None
    with fork_server.serve(spec) as server:
        server.wait_ready(timeout_s=60)
        writers = [json.loads(path.read_bytes()) for path in sorted(spec.spool.glob("rank-*.json"))]
        assert [(writer["pp_rank"], writer["has_final"]) for writer in writers] == [(0, False), (1, True)]
        psutil.Process(writers[0]["pid"]).kill()
        assert wait_for(lambda: server.poll() is not None, 60)
        assert server.wait_ended().message.startswith("the server ")
    assert session_members(server.pid) == []


def test_servers_die_with_the_process_that_forked_them(template: LaunchSpec, make_spec: SpecMaker) -> None:
    spec = make_spec()
    with ForkServer(replace(template, log=spec.log.with_name("import.log"))) as fork_server:
        server = fork_server.serve(spec)
        server.start()
        server.wait_ready(timeout_s=60)
        family = session_members(server.pid)
        assert len(family) >= 3
        os.kill(fork_server.pid, signal.SIGKILL)
        assert wait_for(lambda: session_members(server.pid) == [], 20)
        with pytest.raises(ServerError, match="the process that forks servers"):
            server.poll()
    server.stop()


class Serve:
    """`auxtap serve --json` as a person's script would run it."""

    def __init__(self, patched: AppliedWorktree, model: Path, cache: CacheLayout, *more: str) -> None:
        command = [
            "serve",
            "--worktree",
            str(patched.path),
            "--model-path",
            str(model),
            "--cpu",
            "--port",
            "0",
            "--json",
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "auxtap.cli", *command, *more],
            env={**os.environ, "AUXTAP_CACHE": str(cache.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> Mapping[str, object]:
        assert self.process.stdout is not None
        record: Mapping[str, object] = json.loads(self.process.stdout.readline())
        return record

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


def test_serve_stops_whole_and_exits_0(
    patched: AppliedWorktree, tiny: Mapping[str, Path], shared_cache: CacheLayout
) -> None:
    serve = Serve(patched, tiny["llama"], shared_cache, "--", "--chunked-prefill-size", "16")
    record = serve.wait_ready()
    assert record["layers"] == [3, 5, 6]
    assert httpx.get(f"{record['url']}/health", timeout=10, trust_env=False).status_code == 200
    family = session_members(int(str(record["pid"])))
    assert len(family) >= 3
    serve.process.send_signal(signal.SIGINT)
    assert serve.end()[0] == 0
    assert session_members(int(str(record["pid"]))) == []
    assert not Path(str(record["spool"])).exists()


def test_serve_says_why_its_server_ended(
    patched: AppliedWorktree, tiny: Mapping[str, Path], shared_cache: CacheLayout
) -> None:
    serve = Serve(patched, tiny["llama"], shared_cache, "--restart", "0")
    record = serve.wait_ready()
    os.kill(int(str(record["pid"])), signal.SIGKILL)
    code, errors = serve.end()
    assert code == 6
    assert "error: the server was killed by SIGKILL" in errors
    assert str(record["log"]) in errors
    assert not Path(str(record["spool"])).exists()
    assert session_members(int(str(record["pid"]))) == []
