"""Stores are gone on with: after kills, stops, torn ledgers; and refused when they are of something else."""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auxtap.core.errors import ExtractionError, IntegrityError
from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.run.driver import ExtractionJob, ExtractionProgress, StopRequest, run_extraction

Maker = Callable[..., ExtractionJob]
SCRIPT = Path(__file__).with_name("extract_script.py")


def contents(store: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Everything that two stores of the same data must share: the files, and the last line of each id."""
    files = {path.name: path.read_bytes() for path in (store / "samples").iterdir()}
    lines = {}
    for text in (store / "ledger.jsonl").read_text().splitlines():
        line = json.loads(text)
        lines[line["id"]] = {key: value for key, value in line.items() if key not in ("time", "attempts", "seconds")}
    return files, lines


def start(job: ExtractionJob) -> "subprocess.Popen[str]":
    arguments = [str(job.dataset.path), job.server_url, str(job.spool), str(job.store), job.part_format]
    return subprocess.Popen([sys.executable, str(SCRIPT), *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_store(make_job: Maker, server: Any) -> None:
    whole = make_job(40, store=make_job(1).store.with_name("whole"))
    run_extraction(whole)
    job = make_job(40)
    server.delay_s = 0.03
    n_requests_before = len(server.requests)
    chance = random.Random(11)
    for _ in range(3):
        n_stored = sum(1 for _ in job.store.glob("samples/*")) if job.store.exists() else 0
        child = start(job)
        try:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and sum(1 for _ in job.store.glob("samples/0*")) < n_stored + 6:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.03))
        finally:
            child.kill()
            child.communicate()
    assert 0 < check_store(job.store).stored < 40
    summary = run_extraction(job)
    assert summary.already_stored >= 15 and summary.complete
    assert contents(job.store) == contents(whole.store)
    assert check_store(job.store).findings == ()
    requests = server.requests[n_requests_before:]
    assert len({str(rid) for rid in requests}) == len(requests)
    # What was in flight (3), or received and not stored yet, at each of three kills is asked for again.
    assert len(requests) <= 40 + 3 * (3 + 4)
    assert not [path.name for path in job.spool.iterdir() if path.name.startswith("aux1-")]
    again = run_extraction(job)
    assert (again.already_stored, again.stored) == (40, 0) and len(server.requests) == n_requests_before + len(requests)


def test_two_extractors_on_one_store_are_refused(make_job: Maker, server: Any) -> None:
    server.delay_s = 0.2
    job = make_job(30, concurrency=1)
    child = start(job)
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not server.requests:
            time.sleep(0.01)
        with pytest.raises(ExtractionError, match="another extraction is writing into store"):
            run_extraction(job)
        with pytest.raises(ExtractionError, match="an extraction is writing into store"):
            check_store(job.store)
    finally:
        child.kill()
        child.communicate()
    server.delay_s = 0.0
    assert run_extraction(job).complete


def test_asked_to_finish_it_stores_what_is_in_flight(make_job: Maker, server: Any) -> None:
    server.delay_s = 0.05
    stop = StopRequest()

    def observe(progress: ExtractionProgress) -> None:
        if progress.stored >= 3 and not stop.finish.is_set():
            stop.escalate()

    job = make_job(40)
    summary = run_extraction(job, observe, stop=stop)
    assert summary.interrupted and not summary.complete
    assert 3 <= summary.stored < 40 and summary.failed == 0
    assert check_store(job.store).stored == summary.stored == len(server.requests)
    rest = run_extraction(job)
    assert (rest.already_stored, rest.complete) == (summary.stored, True)


def test_asked_twice_it_stops_at_once(make_job: Maker, server: Any, tap: Any) -> None:
    server.hang_after = 4
    stop = StopRequest()

    def observe(progress: ExtractionProgress) -> None:
        if progress.stored == 4 and progress.in_flight == 4:
            stop.escalate()
            stop.escalate()

    job = make_job(40, timeout_s=60.0)
    begun = time.monotonic()
    summary = run_extraction(job, observe, stop=stop)
    assert time.monotonic() - begun < 5.0
    assert summary.interrupted and summary.stored == 4 and summary.failed == 0
    server.hang_after = None
    assert run_extraction(job).complete
    assert check_store(job.store).findings == ()


def test_a_signal_interrupts_a_process_and_the_same_command_goes_on(make_job: Maker, server: Any) -> None:
    server.delay_s = 0.1
    job = make_job(30)
    child = start(job)
    while not server.requests:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=20)
    assert child.returncode != 0
    server.delay_s = 0.0
    assert run_extraction(job).complete and check_store(job.store).findings == ()


def test_a_torn_ledger_is_cut_and_its_sample_taken_again(make_job: Maker) -> None:
    job = make_job(5)
    run_extraction(job)
    before = contents(job.store)
    ledger = job.store / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-20])
    report = check_store(job.store)
    assert any("cut short" in finding.what for finding in report.findings)
    messages: list[str] = []
    summary = run_extraction(job, lambda progress: messages.append(progress.message or ""))
    assert (summary.already_stored, summary.stored) == (4, 1)
    assert any("was cut short and is dropped" in message for message in messages)
    assert contents(job.store) == before


def test_an_unreadable_ledger_line_is_named(make_job: Maker, server: Any) -> None:
    job = make_job(3)
    run_extraction(job)
    ledger = job.store / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(lines[0] + b"{nonsense}\n" + lines[2])
    with pytest.raises(IntegrityError, match=r"ledger.jsonl:2: unreadable"):
        run_extraction(job)
    assert any("line 2" in finding.what for finding in check_store(job.store).findings)


@pytest.mark.parametrize("damage", ["truncate", "remove", "other_header"])
def test_stored_files_that_are_not_whole_are_taken_again(make_job: Maker, server: Any, damage: str) -> None:
    job = make_job(4)
    run_extraction(job)
    before = contents(job.store)
    path = job.store / "samples/00000002.pp0.safetensors"
    if damage == "truncate":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "remove":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data.replace(b'"id":"s/2"', b'"id":"s/7"'))
    n_requests = len(server.requests)
    summary = run_extraction(job)
    assert (summary.already_stored, summary.stored) == (3, 1) and len(server.requests) == n_requests + 1
    assert contents(job.store) == before


def test_leftovers_are_removed_and_other_runs_left_alone(make_job: Maker) -> None:
    job = make_job(2)
    run_extraction(job)
    run = json.loads((job.store / "manifest.json").read_text())["run"]
    for name in (f"aux1-{run}-0-101.pp0.dp0.ready", f"aux1-{run}-1-102.pp0.dp0.part"):
        (job.spool / name).write_bytes(b"old")
    stranger = job.spool / "aux1-ffffffff-0-101.pp0.dp0.ready"
    stranger.write_bytes(b"theirs")
    (job.store / "samples/.00000001.pp0.safetensors.1.tmp").write_bytes(b"half")
    (job.store / ".manifest.json.1.tmp").write_bytes(b"half")
    assert run_extraction(job).already_stored == 2
    assert [path.name for path in job.spool.iterdir() if path.name.startswith("aux1-")] == [stranger.name]
    assert check_store(job.store).findings == ()


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"model_path": "/models/other"}, "model path: /models/tiny, now /models/other"),
        ({"model_class": "OtherForCausalLM"}, "model class: TinyForCausalLM, now OtherForCausalLM"),
        ({"patch_digest": "sha256:q"}, "patch digest: sha256:p, now sha256:q"),
        ({"source_digest": "sha256:t"}, "source digest: sha256:s, now sha256:t"),
        ({"release": "0.5.10"}, "release: 0.5.9, now 0.5.10"),
        ({"dtype": "BF16"}, "dtype: F32, now BF16"),
        ({"final": "both"}, "final: post-norm, now both"),
        ({"layers": (3, 6), "all_layers": (3, 6)}, r"layers: \[3, 5\], now \[3, 6\]"),
    ],
)
def test_a_store_of_something_else_is_refused(
    make_job: Maker, tap: Any, server: Any, change: dict[str, Any], difference: str
) -> None:
    job = make_job(2)
    run_extraction(job)
    before = (job.store / "manifest.json").read_bytes()
    original = tap.descriptor
    tap.descriptor = lambda pp, dp=0: replace(original(pp, dp), **change)
    tap.announce()
    with pytest.raises(ExtractionError, match=f"is of something else: .*{difference}"):
        run_extraction(job)
    assert (job.store / "manifest.json").read_bytes() == before and len(server.requests) == 2


def test_a_store_of_another_dataset_is_refused(make_job: Maker) -> None:
    run_extraction(make_job(2))
    with pytest.raises(ExtractionError, match=r"dataset digest: .*dataset n samples: 2, now 3"):
        run_extraction(make_job(3))


def test_a_store_of_another_pipeline_is_refused(make_job: Maker, tap: Any) -> None:
    run_extraction(make_job(2))
    tap.stages = ((3,), (5,))
    (tap.spool / "rank-testhost-0-0.json").unlink()
    tap.announce()
    with pytest.raises(ExtractionError, match="stages: "):
        run_extraction(make_job(2))


def test_other_server_arguments_are_told_but_no_obstacle(make_job: Maker, server: Any) -> None:
    job = make_job(2)
    run_extraction(job)
    server.arguments["chunked_prefill_size"] = 16
    messages: list[str] = []
    assert run_extraction(job, lambda progress: messages.append(progress.message or "")).complete
    assert any("server arguments differ" in message and "chunked_prefill_size" in message for message in messages)


def test_attempts_are_never_used_twice(make_job: Maker, tap: Any, server: Any) -> None:
    tap.faults = {0: ["500"] * 2}
    job = make_job(1, max_tries=2)
    assert run_extraction(job).failed == 1
    assert run_extraction(job).stored == 1
    assert [rid.attempt for rid in server.requests] == [101, 102, 201]


def test_the_lock_goes_with_the_process_not_with_the_file(make_job: Maker) -> None:
    job = make_job(2)
    run_extraction(job)
    assert (job.store / ".lock").exists()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(run_extraction(job).complete))
    thread.start()
    thread.join()
    assert results == [True]
