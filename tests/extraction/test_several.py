"""Several servers, replicas and hosts: balanced by tokens, handed on when one goes, drained from elsewhere."""

import contextlib
import itertools
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auxtap.core.errors import ExtractionError, ServerError, UsageError
from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.datasets.reading import Sample
from auxtap.extraction.datasets.record import Place
from auxtap.extraction.datasets.token_file import TokenFile
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.extraction.run.job import ServerPlace
from auxtap.extraction.servers.admission import Admission
from auxtap.extraction.servers.sequence import (
    LOOK_AHEAD,
    PATIENCE,
    WINDOW,
    QueuedSample,
    SendingQueue,
    in_sending_order,
)
from auxtap.extraction.spool.relay import relay_spool

Maker = Callable[..., ExtractionJob]


def both(make_job: Maker, second: Any, n_samples: int, **changes: Any) -> ExtractionJob:
    place = ServerPlace(second.url, (second.tap.spool,))
    return make_job(n_samples, more_servers=(place,), **changes)


def test_two_servers_share_the_tokens(make_job: Maker, server: Any, second: Any) -> None:
    server.delay_s = second.delay_s = 0.02
    job = both(make_job, second, 60, concurrency=2)
    assert run_extraction(job).complete
    assert check_store(job.store).findings == ()
    tokens = [sum(job.dataset.samples[rid.index].n_tokens for rid in each.requests) for each in (server, second)]
    assert min(tokens) > 0.25 * sum(tokens) and len(server.requests) + len(second.requests) == 60


def test_a_server_that_goes_hands_its_samples_on(make_job: Maker, server: Any, second: Any) -> None:
    def die(rid: Any) -> None:
        if server.reached(6):
            threading.Thread(target=server.stop).start()
        if len(server.requests) >= 6:
            time.sleep(0.2)
            raise ConnectionAbortedError

    server.before_answer, server.delay_s, second.delay_s = die, 0.02, 0.02
    job = both(make_job, second, 40, timeout_s=5.0)
    messages: list[str] = []
    summary = run_extraction(job, lambda progress: messages.append(progress.message or ""))
    assert summary.complete and summary.failed == 0
    assert any("are handed on" in message for message in messages)
    assert check_store(job.store).findings == () and len(second.requests) > 20


@pytest.mark.slow
def test_a_server_that_hangs_hands_its_samples_on(make_job: Maker, server: Any, second: Any) -> None:
    server.hang_after, server.healthy = 3, False
    begun = time.monotonic()
    job = both(make_job, second, 30, timeout_s=600.0, stall_timeout_s=1.0)
    summary = run_extraction(job)
    assert summary.complete and time.monotonic() - begun < 20.0
    assert check_store(job.store).findings == ()


def test_all_servers_gone_ends_the_run(make_job: Maker, server: Any, second: Any) -> None:
    job = both(make_job, second, 30, timeout_s=2.0)

    def stop_both(rid: Any) -> None:
        for each in (server, second):
            threading.Thread(target=each.stop).start()
        time.sleep(1.0)

    server.before_answer = second.before_answer = stop_both
    server.tap.faults = second.tap.faults = {index: ["drop"] * 9 for index in range(30)}
    with pytest.raises(ServerError, match="is gone or stuck"):
        run_extraction(job)


def test_servers_that_do_not_serve_the_same_are_refused(make_job: Maker, second: Any) -> None:
    original = second.tap.descriptor
    second.tap.descriptor = lambda pp, dp=0: replace(original(pp, dp), patch_digest="sha256:q", dtype="BF16")
    second.tap.announce()
    with pytest.raises(ExtractionError, match="do not serve the same: dtype 'F32' and 'BF16'; patch digest"):
        run_extraction(both(make_job, second, 2))
    with pytest.raises(UsageError, match="a spool is named twice"):
        run_extraction(make_job(2, extra_spools=(make_job(1).spool,)))
    with pytest.raises(UsageError, match="a server is named twice"):
        job = make_job(2)
        run_extraction(replace(job, more_servers=(ServerPlace(job.server_url, (second.tap.spool,)),)))


def test_behind_a_router_the_parts_may_come_into_any_spool(make_job: Maker, server: Any, second: Any) -> None:
    """The fake plays the router: every other request is answered by the other server's tap."""
    own = server.tap.answer
    server.tap.answer = lambda rid, ids, fault: (second.tap.answer if rid.index % 2 else own)(rid, ids, fault)
    job = make_job(12, extra_spools=(second.tap.spool,))
    assert run_extraction(job).complete
    assert check_store(job.store).findings == ()
    for spool in (server.tap.spool, second.tap.spool):
        assert not [path.name for path in spool.iterdir() if path.name.startswith("aux1-")]


def test_stages_on_two_hosts_with_a_drain_between(make_job: Maker, tap: Any, server: Any, tmp_path: Path) -> None:
    """Stage 1 writes on a host of its own; what `auxtap drain` carries over is what the extractor reads."""
    far, shared = tmp_path / "far", tmp_path / "shared"
    far.mkdir(mode=0o700)
    tap.stages = ((3,), (5,))
    for path in tap.spool.iterdir():
        path.unlink()
    far_tap = type(tap)(far, stages=tap.stages, host="farhost")
    far_tap.only, tap.only = {1}, {0}
    far_tap.announce()
    tap.announce()
    own = tap.answer

    def answer(rid: Any, ids: list[int], fault: str | None) -> None:
        own(rid, ids, fault)
        far_tap.answer(rid, ids, fault)

    tap.answer = answer
    stop = threading.Event()
    said: list[str] = []
    counts: list[Any] = []

    def drain() -> None:
        counts.append(relay_spool(far, shared, say=said.append, stop=stop, until_idle_s=None, clock=time.monotonic))

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        while not shared.exists() or not [p for p in shared.iterdir() if p.name.startswith("rank-")]:
            time.sleep(0.01)
        job = make_job(15, extra_spools=(shared,), parts_timeout_s=5.0)
        assert run_extraction(job).complete
    finally:
        stop.set()
        thread.join()
    assert check_store(job.store).findings == () and len(list((job.store / "samples").iterdir())) == 30
    assert (counts[0].parts, counts[0].refused) == (15, 0) and not said


def test_a_drain_drops_damaged_parts_and_says_so(tap: Any, spool: Path, tmp_path: Path) -> None:
    from auxtap.tap.protocol import RequestId

    tap.announce()
    tap.answer(RequestId("00000000", 1, 1), [1, 2, 3], "bad_digest")
    tap.answer(RequestId("00000000", 2, 1), [1, 2, 3], "failed")
    tap.answer(RequestId("00000000", 3, 1), [1, 2, 3], None)
    (spool / "aux1-00000000-4-1.pp0.dp0.ready").symlink_to("/etc/passwd")
    said: list[str] = []
    count = relay_spool(
        spool, tmp_path / "t", say=said.append, stop=threading.Event(), until_idle_s=0.05, clock=time.monotonic
    )
    assert (count.parts, count.records, count.refused) == (1, 1, 2) and len(said) == 2
    names = {path.name for path in (tmp_path / "t").iterdir()}
    assert names == {
        "rank-testhost-0-0.json", "stats-testhost-0-0.json",
        "aux1-00000000-2-1.pp0.dp0.failed", "aux1-00000000-3-1.pp0.dp0.ready",
    }  # fmt: skip
    assert not [path for path in spool.iterdir() if path.name.startswith("aux1-")]


@pytest.mark.parametrize("seed", range(20))
def test_admission_by_bytes_is_exact(seed: int) -> None:
    """Whatever comes and goes in whatever order: never above the bounds, and never refused while there is room."""
    dice = random.Random(seed)
    admission = Admission(dice.randint(1, 8), dice.randint(100, 1000))
    asking: list[tuple[int, int]] = []
    written: list[int] = []
    for _ in range(3000):
        action = dice.random()
        if action < 0.5:
            n_bytes, n_tokens = dice.randint(1, 300), dice.randint(1, 50)
            taken = sum(size for size, _ in asking) + sum(written)
            room = len(asking) < admission.max_requests and taken + n_bytes <= admission.max_bytes
            assert admission.admit(n_bytes, n_tokens) == room
            if room:
                asking.append((n_bytes, n_tokens))
        elif action < 0.75 and asking:
            n_bytes, n_tokens = asking.pop(dice.randrange(len(asking)))
            admission.end_request(n_tokens)
            written.append(n_bytes)
        elif written:
            admission.free(written.pop(dice.randrange(len(written))))
        assert admission.n_bytes == sum(size for size, _ in asking) + sum(written) <= admission.max_bytes
        assert admission.n_requests == len(asking) <= admission.max_requests
        assert admission.n_tokens == sum(tokens for _, tokens in asking)


@pytest.mark.slow
def test_the_spool_never_holds_more_than_its_bound(make_job: Maker, server: Any, spool: Path) -> None:
    """Measured on the disk while a slow store keeps everything in the spool."""
    server.delay_s = 0.005
    peak = 0
    done = threading.Event()

    def measure() -> None:
        nonlocal peak
        while not done.is_set():
            taken = 0
            for path in spool.iterdir():
                if path.name.startswith("aux1-"):
                    with contextlib.suppress(FileNotFoundError):
                        taken += -(-path.stat().st_size // 4096) * 4096
            peak = max(peak, taken)

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        summary = run_extraction(make_job(60, max_spool_bytes=5 * 4096, concurrency=16, drain_threads=1))
    finally:
        done.set()
        thread.join()
    assert summary.complete and summary.peak_spool_bytes == 5 * 4096
    assert 4096 < peak <= 5 * 4096


NO_TOKENS = TokenFile()


def sample(index: int, n_tokens: int) -> Sample:
    return Sample(index, f"s/{index}", Place(Path("x"), index + 1), n_tokens, NO_TOKENS, 0, "")


def take(queue: SendingQueue, n_bytes: int) -> QueuedSample | None:
    """Take the next sample of at most so many bytes."""
    found = queue.take(lambda queued: "here" if queued.n_bytes <= n_bytes else None)
    assert found is None or found[1] == "here"
    return None if found is None else found[0]


@pytest.mark.parametrize("seed", range(10))
def test_nobody_is_passed_over_for_long(seed: int) -> None:
    dice = random.Random(seed)
    samples = [sample(index, dice.choice((1, 5, 50, 1000))) for index in range(2000)]
    ordered = in_sending_order(samples)
    assert sorted(s.index for s in ordered) == list(range(2000))
    assert all(abs(place - s.index) < WINDOW for place, s in enumerate(ordered))
    assert all(a.n_tokens >= b.n_tokens for a, b in itertools.pairwise(ordered[:WINDOW]))
    queue = SendingQueue([QueuedSample(s, s.n_tokens) for s in ordered])
    places = {s.index: place for place, s in enumerate(ordered)}
    room, taken = 1200, []
    in_use: list[int] = []
    while len(queue):
        found = take(queue, room - sum(in_use))
        if found is None:
            in_use.pop(dice.randrange(len(in_use)))
            continue
        in_use.append(found.n_bytes)
        taken.append(found.sample.index)
    assert sorted(taken) == list(range(2000))
    late = max(when - places[index] for when, index in enumerate(taken))
    assert late <= PATIENCE + LOOK_AHEAD


def test_a_long_prompt_without_room_does_not_stall_short_ones() -> None:
    queue = SendingQueue([QueuedSample(sample(0, 100), 100), *(QueuedSample(sample(i, 1), 1) for i in range(1, 5))])
    assert take(queue, 10).sample.index == 1  # type: ignore[union-attr]
    assert take(queue, 1000).sample.index == 0  # type: ignore[union-attr]
    queue.put_back(QueuedSample(sample(0, 100), 100), 0.0)
    assert take(queue, 1000).sample.index == 0  # type: ignore[union-attr]


def test_the_run_stops_when_too_many_fail(make_job: Maker, tap: Any, server: Any) -> None:
    tap.faults = {index: ["400"] for index in range(100)}
    summary = run_extraction(make_job(100, max_failures=3, concurrency=2))
    assert summary.stopped.endswith("more than the 3 allowed") and not summary.complete
    assert 4 <= summary.failed < 10 and len(server.requests) == summary.failed
    tap.faults.clear()
    assert run_extraction(make_job(100)).complete


@pytest.mark.slow
def test_what_a_server_is_still_at_keeps_its_room(make_job: Maker, tap: Any, server: Any) -> None:
    """A request that timed out is aborted; its bytes are not given to others before its parts have come."""
    tap.faults[0] = ["hang"]
    summary = run_extraction(make_job(1, timeout_s=0.3, max_spool_bytes=2 * 4096, parts_timeout_s=0.5))
    assert summary.complete and len(server.aborted) == 1
    tap.faults[0] = ["hang"]
    begun = time.monotonic()
    tight = make_job(1, timeout_s=0.3, max_spool_bytes=4096, parts_timeout_s=0.5, store=make_job(1).store / "../t")
    assert run_extraction(tight).complete and time.monotonic() - begun >= 0.8


def test_a_store_that_stumbles_is_tried_again(make_job: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    from auxtap.extraction.store.store import Store

    original, stumbles = Store.write_part, [errno.EIO, errno.ESTALE, errno.ETIMEDOUT]

    def write(self: Any, *arguments: Any) -> Any:
        if stumbles:
            raise OSError(stumbles.pop(), "the mount stumbles")
        return original(self, *arguments)

    monkeypatch.setattr(Store, "write_part", write)
    messages: list[str] = []
    job = make_job(5)
    assert run_extraction(job, lambda progress: messages.append(progress.message or "")).complete
    assert sum("trying again in" in message for message in messages) == 3
    assert check_store(job.store).findings == ()
    stumbles[:] = [errno.EIO] * 100
    with pytest.raises(ExtractionError, match="cannot be written: the mount stumbles"):
        run_extraction(make_job(5, store=job.store.with_name("other"), store_tries=2))


def test_status_lines_are_json(make_job: Maker) -> None:
    job = make_job(4)
    run_extraction(job)
    record = json.loads((job.store / "status.json").read_text())
    assert (record["state"], record["outcome"], record["stored"]) == ("ended", "complete", 4)
