"""A server is started again when it dies and when an extractor asks for it, so often and no oftener."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil
import pytest

from auxtap.commands.serve import run_server
from auxtap.commands.terminations import terminations_interrupt
from auxtap.core.errors import ServerError
from auxtap.core.keeping import ask_for_restart, is_kept, living_nonces
from auxtap.serving.keeper import Keeper
from auxtap.serving.profile import LaunchSpec
from auxtap.serving.server import ServerProcess, answers

pytestmark = pytest.mark.slow

MakeSpec = Callable[[str], LaunchSpec]
# A fake whose writer has a nonce of its own for each start.
BODY = """
import secrets
spool = os.environ["AUXTAP_SPOOL"]
record = {"pp_rank": 0, "pp_size": 1, "dp_rank": 0, "dp_size": 1, "nonce": secrets.token_hex(4)}
with open(f"{spool}/.rank-fake-0-0.tmp", "w") as file:
    json.dump(record, file)
os.rename(f"{spool}/.rank-fake-0-0.tmp", f"{spool}/rank-fake-0-0.json")
print("start", record["nonce"], flush=True)
serve()
"""


@dataclass
class Kept:
    """A keeper at work in a thread, and what it has said."""

    server: ServerProcess
    restarts: int
    said: list[str] = field(default_factory=list)
    ended: list[ServerError] = field(default_factory=list)

    def start(self) -> threading.Thread:
        keeper = Keeper(self.server, restarts=self.restarts, timeout_s=30, progress=self.said.append, pause_s=0.0)
        thread = threading.Thread(target=lambda: self.ended.append(keeper.keep()), daemon=True)
        thread.start()
        return thread

    def wait_for_ready(self, times: int) -> None:
        wait_for(lambda: sum("ready again" in line for line in self.said) >= times)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_dead_server_is_started_again_as_often_as_allowed(make_spec: MakeSpec) -> None:
    spec = make_spec(BODY)
    assert spec.spool is not None
    spool = spec.spool
    with ServerProcess(spec) as server:
        server.wait_ready(timeout_s=30)
        kept = Kept(server, restarts=2)
        thread = kept.start()
        nonces = [living_nonces(spool)]
        for number in (1, 2):
            wait_for(lambda: is_kept(spool))
            os.kill(server.pid, signal.SIGKILL)
            kept.wait_for_ready(number)
            nonces.append(living_nonces(spool))
        # Nobody may wait for a start that will not come.
        wait_for(lambda: not is_kept(spool))
        os.kill(server.pid, signal.SIGKILL)
        thread.join(timeout=60)
    assert len(set(nonces)) == 3
    assert "was killed by SIGKILL" in kept.said[0] and "starting it again (1 of 2)" in kept.said[0]
    assert "was killed by SIGKILL" in kept.ended[0].message
    for number, nonce in enumerate(nonces[:2], start=1):
        assert next(iter(nonce)) in spec.log.with_name(f"server.{number}.log").read_text()


def test_an_extractor_asks_for_another_start(make_spec: MakeSpec) -> None:
    spec = make_spec(BODY)
    assert spec.spool is not None
    with ServerProcess(spec) as server:
        server.wait_ready(timeout_s=30)
        kept = Kept(server, restarts=1)
        thread = kept.start()
        first, pid = living_nonces(spec.spool), server.pid
        ask_for_restart(spec.spool, {"of another start"}, "gone")
        ask_for_restart(spec.spool, first, "stuck: no sign of life for 3 s")
        kept.wait_for_ready(1)
        assert living_nonces(spec.spool) != first and server.pid != pid
        # A second extractor that lost the same start asks too late.
        ask_for_restart(spec.spool, first, "gone")
        server.stop()
        thread.join(timeout=60)
    assert kept.said[0].startswith("an extractor finds the server stuck: no sign of life")


def test_starts_that_come_to_nothing_count(make_spec: MakeSpec) -> None:
    spec = make_spec(
        "import pathlib\nmark = pathlib.Path(os.environ['AUXTAP_SPOOL']) / 'started'\n"
        "if mark.exists():\n    raise SystemExit('RuntimeError: no memory left')\nmark.touch()\n" + BODY
    )
    with ServerProcess(spec) as server:
        server.wait_ready(timeout_s=30)
        kept = Kept(server, restarts=2)
        thread = kept.start()
        os.kill(server.pid, signal.SIGKILL)
        thread.join(timeout=60)
    assert sum("starting it again" in line for line in kept.said) == 2
    assert "no memory left" in kept.ended[0].message


def test_without_restarts_it_is_only_watched(make_spec: MakeSpec) -> None:
    spec = make_spec(BODY)
    assert spec.spool is not None
    with ServerProcess(spec) as server:
        server.wait_ready(timeout_s=30)
        kept = Kept(server, restarts=0)
        thread = kept.start()
        assert not is_kept(spec.spool)
        os.kill(server.pid, signal.SIGKILL)
        thread.join(timeout=60)
    assert "was killed by SIGKILL" in kept.ended[0].message and not kept.said


def test_the_command_starts_a_dead_server_again_and_ends_when_asked(
    make_spec: MakeSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = make_spec(BODY)
    assert spec.spool is not None
    spool = spec.spool
    # Other tests of this process keep servers for the whole run.
    others = set(psutil.Process().children())

    def disturb() -> None:
        wait_for(lambda: is_kept(spool))
        first = living_nonces(spool)
        for child in set(psutil.Process().children()) - others:
            child.kill()
        wait_for(lambda: bool(living_nonces(spool) - first) and answers(spec.url))
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=disturb, daemon=True).start()
    with terminations_interrupt():
        run_server(spec, 30.0, restarts=2, json_output=True)
    out, said = capsys.readouterr()
    assert json.loads(out)["url"] == spec.url
    assert "starting it again (1 of 2)" in said and "the server is stopped" in said
    assert not answers(spec.url) and not is_kept(spool)
