"""Servers and taps that misbehave: transient faults are retried, the others are a sample's fate, never silence."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from auxtap.core.errors import ExtractionError, ServerError
from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.run.driver import ExtractionJob, run_extraction

Maker = Callable[..., ExtractionJob]
TRANSIENT = (
    "500", "503", "429", "garbage", "huge", "half_body", "drop", "abort", "other_answer", "not_ready", "failed",
    "stale_nonce", "wrong_ids", "bad_digest", "truncated", "garbage_part", "wrong_rows", "wrong_shape", "symlink",
)  # fmt: skip


@pytest.mark.parametrize("fault", TRANSIENT)
def test_a_fault_that_passes_is_overcome(make_job: Maker, tap: Any, server: Any, fault: str) -> None:
    tap.faults[1] = [fault]
    job = make_job(3)
    summary = run_extraction(job)
    assert (summary.stored, summary.failed, summary.complete) == (3, 0, True)
    assert [rid.index for rid in server.requests].count(1) == 2
    assert len({str(rid) for rid in server.requests}) == 4
    assert check_store(job.store).findings == ()
    assert not (job.store / "quarantine").exists()
    assert not [path.name for path in job.spool.iterdir() if path.name.startswith("aux1-")]


REASONS = {
    "500": "the server answered 500: try again",
    "garbage": "the server's answer is unreadable",
    "not_ready": "after 0.3 s only 1 of 1 parts are begun",
    "failed": "the tap gave it up on stage 0: rows begin at 7",
    "stale_nonce": "no part of it is in the spool",
    "wrong_ids": "holds states of another prompt",
    "bad_digest": "does not have the digest that the tap gave it",
    "truncated": "bytes, not",
    "garbage_part": "header length",
    "wrong_rows": "has input_ids as I64 [5], not I64 [6]",
    "wrong_shape": "has hidden.3 as F32 [6, 16], not F32 [6, 8]",
    "symlink": "a foreign file in the spool",
    "nan": "final holds NaN or infinity",
    "inf": "final holds NaN or infinity",
    "400": "is longer than the model's context length",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", REASONS)
def test_a_fault_that_stays_is_one_samples_fate(make_job: Maker, tap: Any, server: Any, fault: str) -> None:
    tap.faults[1] = [fault] * 9
    job = make_job(3)
    summary = run_extraction(job)
    assert (summary.stored, summary.failed, summary.complete) == (2, 1, False)
    assert summary.not_stored[0].sample_id == "s/1" and REASONS[fault] in summary.not_stored[0].reason
    n_tries = 1 if fault in ("nan", "inf", "400") else 3
    assert [rid.index for rid in server.requests].count(1) == n_tries
    line = next(line for line in map(json.loads, (job.store / "ledger.jsonl").open()) if line["id"] == "s/1")
    assert (line["fate"], line["attempts"], line["parts"]) == ("failed", n_tries, [])
    report = check_store(job.store)
    assert (report.stored, report.failed, report.findings) == (2, 1, ())
    kept = fault in ("wrong_ids", "bad_digest", "truncated", "garbage_part", "wrong_rows", "wrong_shape", "nan", "inf")
    assert report.quarantined == int(kept)
    if kept:
        (folder,) = (job.store / "quarantine").iterdir()
        reason = json.loads((folder / "reason.json").read_text())
        assert REASONS[fault] in reason["reason"] and (folder / reason["received"][0]).stat().st_size > 0
    tap.faults.clear()
    again = run_extraction(job)
    assert (again.already_stored, again.stored, again.complete) == (2, 1, True)


def test_a_missing_stage_is_named(make_job: Maker, tap: Any) -> None:
    tap.stages = ((2,), (6,))
    tap.announce()
    tap.faults[0] = ["one_stage"] * 9
    summary = run_extraction(make_job(1))
    assert summary.not_stored[0].reason == "after 0.3 s only 1 of 2 parts are ready"


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_nan_in_half_precision(make_job: Maker, tap: Any, dtype: str) -> None:
    tap.dtype = dtype
    tap.announce()
    tap.faults[2] = ["nan"]
    summary = run_extraction(make_job(3))
    assert (summary.stored, summary.failed) == (2, 1)


def test_parts_that_come_after_the_answer_are_waited_for(make_job: Maker, tap: Any) -> None:
    tap.faults = {0: ["late"], 1: ["late"]}
    assert run_extraction(make_job(2, parts_timeout_s=5.0)).complete


def test_a_server_that_hangs_on_one_request(make_job: Maker, tap: Any) -> None:
    tap.faults[0] = ["hang"]
    assert run_extraction(make_job(2, timeout_s=0.4)).complete


def test_a_stuck_server_ends_the_run(make_job: Maker, tap: Any, server: Any) -> None:
    tap.faults[0] = ["hang"] * 9
    server.healthy = False
    with pytest.raises(ServerError, match=r"gone or stuck: no answer within 0.2 s"):
        run_extraction(make_job(2, timeout_s=0.2))


def test_a_server_that_dies_in_the_middle(make_job: Maker, tap: Any, server: Any, fake_server: Any) -> None:
    n_answered = threading.Semaphore(5)

    def die(rid: Any) -> None:
        if not n_answered.acquire(blocking=False):
            threading.Thread(target=server.stop).start()
            time.sleep(0.3)
            raise ConnectionAbortedError

    server.before_answer = die
    job = make_job(12, timeout_s=3.0)
    with pytest.raises(ServerError, match="is gone or stuck") as raised:
        run_extraction(job)
    assert "run the same command again" in (raised.value.hint or "")
    stored = check_store(job.store)
    # The last answer may be cut off on its way when the server goes.
    assert 4 <= stored.stored <= 5 and stored.failed == 0 and not stored.findings
    tap.nonce = "nonce-b"
    tap.announce()
    living = fake_server(tap)
    summary = run_extraction(make_job(12, server_url=living.url))
    assert (summary.already_stored, summary.complete) == (stored.stored, True)
    assert summary.stored == 12 - stored.stored


def test_a_server_started_again_in_the_middle_is_followed(make_job: Maker, tap: Any, server: Any) -> None:
    def restart(rid: Any) -> None:
        if rid.index == 3 and tap.nonce == "nonce-a":
            tap.nonce = "nonce-b"
            tap.announce()

    server.before_answer = restart
    assert run_extraction(make_job(6)).complete


@pytest.mark.slow
def test_a_server_started_again_with_other_settings_ends_the_run(make_job: Maker, tap: Any, server: Any) -> None:
    def restart(rid: Any) -> None:
        if rid.index == 1:
            tap.nonce, tap.dtype = "nonce-b", "BF16"
            tap.announce()

    server.before_answer = restart
    with pytest.raises(ExtractionError, match="started again with other settings"):
        run_extraction(make_job(3, concurrency=1))


@pytest.mark.slow
def test_a_spool_that_is_removed_ends_the_run(make_job: Maker, tap: Any, server: Any) -> None:
    tap.faults[0] = ["not_ready"]
    server.before_answer = lambda rid: None
    job = make_job(1, parts_timeout_s=1.0)
    threading.Timer(0.3, shutil.rmtree, args=(job.spool,)).start()
    with pytest.raises(ExtractionError, match="was removed"):
        run_extraction(job)


def test_a_full_store_ends_the_run_and_keeps_what_is_there(
    make_job: Maker, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(rid: Any) -> None:
        if server.reached(4):
            monkeypatch.setattr(os, "fsync", _no_space)

    server.before_answer = fill
    job = make_job(6, concurrency=1)
    with pytest.raises(ExtractionError, match=r"store .* cannot be written: No space left on device"):
        run_extraction(job)
    monkeypatch.undo()
    report = check_store(job.store)
    assert report.stored <= 3 and report.findings == ()
    assert run_extraction(job).complete


def _no_space(handle: int) -> None:
    raise OSError(28, os.strerror(28))


@pytest.mark.slow
def test_a_server_whose_inside_has_died_is_noticed_long_before_the_requests_time_out(
    make_job: Maker, tap: Any, server: Any
) -> None:
    server.hang_after = 3

    def fall_ill(rid: Any) -> None:
        server.healthy = server.healthy and len(server.requests) <= 3

    server.before_answer = fall_ill
    job = make_job(20, timeout_s=600.0, stall_timeout_s=1.0)
    begun = time.monotonic()
    with pytest.raises(ServerError, match="is stuck: no sign of life for") as raised:
        run_extraction(job)
    assert time.monotonic() - begun < 15.0 and "run the same command again" in (raised.value.hint or "")
    server.healthy, server.before_answer, server.hang_after = True, lambda rid: None, None
    summary = run_extraction(job)
    assert (summary.already_stored, summary.complete) == (3, True)


@pytest.mark.slow
def test_a_server_that_is_slow_but_well_is_waited_for(make_job: Maker, server: Any) -> None:
    server.delay_s = 1.2
    assert run_extraction(make_job(2, stall_timeout_s=0.4)).complete
