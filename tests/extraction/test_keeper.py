"""A server that is gone is started again by whoever keeps it, and waited for as long as that is at work."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auxtap.core.errors import ServerError
from auxtap.core.keeping import REQUEST, ask_for_restart, is_kept, keeping, take_request
from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.extraction.servers.restart import LostServer

Maker = Callable[..., ExtractionJob]


@pytest.mark.slow
def test_a_server_that_comes_back_is_waited_for_and_restarted_once(
    make_job: Maker, tap: Any, server: Any, fake_server: Any
) -> None:
    """The restart is the keeper's; the same port must answer again, later than a server without one is waited for."""
    port = int(server.url.rpartition(":")[2])
    restarted: list[LostServer] = []

    def die(rid: Any) -> None:
        if server.reached(5):
            threading.Thread(target=server.stop).start()
        if len(server.requests) >= 5:
            time.sleep(0.3)
            raise ConnectionAbortedError

    class Keeper:
        def restart(self, lost: LostServer) -> None:
            restarted.append(lost)
            time.sleep(1.5)
            tap.nonce = "nonce-b"
            tap.announce()
            fake_server(tap, port)

        def is_at_it(self, lost: LostServer) -> bool:
            return True

    server.before_answer = die
    job = make_job(20, timeout_s=5.0, wait_for_server_s=0.1)
    summary = run_extraction(job, keeper=Keeper())
    assert summary.complete
    (lost,) = restarted
    assert (lost.url, lost.spools, lost.nonces) == (server.url, (tap.spool,), frozenset({"nonce-a-0-0"}))
    assert check_store(job.store).findings == ()


@pytest.mark.slow
def test_a_server_that_may_not_be_started_again_ends_the_run(make_job: Maker, tap: Any, server: Any) -> None:
    class Keeper:
        def restart(self, lost: LostServer) -> None:
            self.asked = True

        def is_at_it(self, lost: LostServer) -> bool:
            return False

    keeper = Keeper()
    server.hang_after, server.healthy = 3, False
    job = make_job(20, timeout_s=600.0, stall_timeout_s=0.5, wait_for_server_s=3.0)
    with pytest.raises(ServerError, match="stuck: no sign of life"):
        run_extraction(job, keeper=keeper)
    assert keeper.asked


@pytest.mark.slow
def test_the_keeper_of_the_spool_is_asked_and_starts_a_stuck_server_again(
    make_job: Maker, tap: Any, server: Any, fake_server: Any
) -> None:
    """What `auxtap serve` does, played by a thread."""
    port = int(server.url.rpartition(":")[2])
    asked: list[str] = []
    ended = threading.Event()

    def keep() -> None:
        with keeping(tap.spool):
            while not asked:
                request = take_request(tap.spool)
                if request is not None:
                    asked.append(request.reason)
                time.sleep(0.02)
            server.stop()
            tap.nonce = "nonce-b"
            tap.announce()
            fake_server(tap, port)
            ended.wait()

    server.hang_after, server.healthy = 3, False
    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    summary = run_extraction(make_job(20, timeout_s=600.0, stall_timeout_s=0.5, wait_for_server_s=0.1))
    ended.set()
    keeper.join()
    assert summary.complete and summary.failed == 0
    assert asked[0].startswith("stuck: no sign of life")


def test_keeper_and_request_are_known_by_their_files(tap: Any, server: Any) -> None:
    spool: Path = tap.spool
    assert not is_kept(spool) and take_request(spool) is None
    with keeping(spool):
        assert is_kept(spool)
        with pytest.raises(BlockingIOError), keeping(spool):
            pass
        ask_for_restart(spool, {"nonce-a-0-0"}, "gone")
        request = take_request(spool)
        assert request is not None and (request.nonces, request.reason) == (frozenset({"nonce-a-0-0"}), "gone")
        assert take_request(spool) is None
        ask_for_restart(spool, {"nonce-of-an-earlier-start"}, "gone")
        assert take_request(spool) is None and not (spool / REQUEST).exists()
        (spool / REQUEST).symlink_to("/etc/passwd")
        assert take_request(spool) is None
    assert not is_kept(spool)
    assert not list(spool.glob(".*"))
