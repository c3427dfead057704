"""Watching a run from outside: status, JSON log, metrics; and joining shards."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.extraction.run.job import ExtractionProgress, Shard
from auxtap.extraction.run.reporting import Metrics
from auxtap.extraction.run.status import read_status
from auxtap.extraction.store.merge import merge_stores

pytestmark = pytest.mark.slow

Maker = Callable[..., ExtractionJob]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from auxtap.cli import main; main()", *map(str, arguments)]


def auxtap(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120)


def contents(store: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    files = {path.name: path.read_bytes() for path in (store / "samples").iterdir()}
    lines = {}
    for text in (store / "ledger.jsonl").read_text().splitlines():
        line = json.loads(text)
        lines[line["id"]] = {key: value for key, value in line.items() if key not in ("time", "attempts", "seconds")}
    return files, sorted(lines.values(), key=lambda line: line["index"])


def test_status_log_and_metrics_while_it_runs(server: Any, write_dataset: Callable[..., Path], tmp_path: Path) -> None:
    server.delay_s, server.tap.faults = 0.1, {3: ["400"]}
    store, log = tmp_path / "store", tmp_path / "log.jsonl"
    child = subprocess.Popen(
        command(
            "extract", write_dataset(60), "--server", server.url, "--spool", server.tap.spool, "--out", store,
            "--canary", 0, "--concurrency", 2, "--log-json", log, "--metrics-port", 0,
        ),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stderr is not None
    match = re.search(r"http://\S+", child.stderr.readline())
    assert match is not None
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not ((store / "status.json").exists() and len(server.requests) > 15):
        time.sleep(0.02)
    time.sleep(1.2)
    status = read_status(store)
    assert status.state == "running" and 0 < status.stored < 60 and status.n_expected == 60
    assert status.in_flight <= 2 and status.spool_limit > 0 and status.servers_up == status.servers == 1
    shown = auxtap("status", store)
    assert shown.returncode == 0 and "running" in shown.stdout and "of 60 samples" in shown.stdout
    text = urllib.request.urlopen(match[0], timeout=5).read().decode()
    assert re.search(r"^auxtap_samples 60\.0$", text, re.M) and "auxtap_spool_limit_bytes" in text
    server.delay_s = 0.0
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 1, stderr
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert {event["event"] for event in events} >= {"message", "summary"}
    assert events[-1]["stored"] == 59 and events[-1]["failed"] == 1
    record = json.loads(auxtap("status", store, "--json").stdout)
    assert record["state"] == "ended" and record["stored"] == 59 and record["failed"] == 1
    assert "400" in record["last_error"] or "longer than" in record["last_error"]
    assert auxtap("status", tmp_path).returncode == 7


def test_a_killed_run_is_seen_as_vanished(server: Any, write_dataset: Callable[..., Path], tmp_path: Path) -> None:
    server.delay_s = 0.2
    where = ["--server", server.url, "--spool", server.tap.spool, "--out", tmp_path / "store"]
    child = subprocess.Popen(command("extract", write_dataset(60), "--canary", 0, *where), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (tmp_path / "store/status.json").exists():
        time.sleep(0.02)
    child.kill()
    child.wait()
    assert read_status(tmp_path / "store").state == "vanished"


def test_metrics_end_with_the_run_and_a_taken_port_is_said() -> None:
    metrics = Metrics(0)
    metrics(ExtractionProgress(7, 70, stored=3))
    text = urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=5).read().decode()
    assert "auxtap_samples_stored 3.0" in text
    with pytest.raises(UsageError, match="cannot offer metrics on port"):
        Metrics(metrics.port)
    metrics.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=5)


def test_shards_join_to_the_store_of_one_run(make_job: Maker, tmp_path: Path, server: Any, tap: Any) -> None:
    tap.stages = ((3,), (5,))
    tap.announce()
    whole = make_job(17)
    assert run_extraction(whole).complete
    shards = []
    for number in (1, 2, 3):
        job = make_job(17, shard=Shard(number, 3), store=tmp_path / f"shard-{number}")
        summary = run_extraction(job)
        assert summary.complete and summary.n_samples == (6, 6, 5)[number - 1]
        report = check_store(job.store)
        assert (report.missing, report.findings) == (0, ())
        shards.append(job.store)
    merged = merge_stores(tmp_path / "merged", shards)
    assert (merged.stored, merged.missing, merged.copied) == (17, 0, 0)
    assert contents(tmp_path / "merged") == contents(whole.store)
    assert check_store(tmp_path / "merged").findings == ()
    n_requests = len(server.requests)
    again = run_extraction(make_job(17, store=tmp_path / "merged"))
    assert again.already_stored == 17 and len(server.requests) == n_requests
    with pytest.raises(ExtractionError, match="is a store already"):
        merge_stores(tmp_path / "merged", shards)


def test_what_cannot_be_joined_is_refused(make_job: Maker, tmp_path: Path, tap: Any) -> None:
    one = make_job(8, shard=Shard(1, 2), store=tmp_path / "one")
    run_extraction(one)
    run_extraction(make_job(8, store=tmp_path / "whole"))
    run_extraction(make_job(8, shard=Shard(1, 2), store=tmp_path / "same"))
    run_extraction(make_job(8, shard=Shard(2, 4), store=tmp_path / "quarter"))
    run_extraction(make_job(9, shard=Shard(2, 2), store=tmp_path / "other"))
    for name, message in (
        ("whole", "is no shard"), ("same", "are both shard 1/2"), ("quarter", "is shard 2/4"),
        ("other", "are not shards of one store: dataset digest"), ("none", "is no store"),
    ):  # fmt: skip
        with pytest.raises(ExtractionError, match=message):
            merge_stores(tmp_path / "m", [one.store, tmp_path / name])
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis").write_text("precious")
    with pytest.raises(ExtractionError, match="is not empty: it holds thesis"):
        merge_stores(tmp_path / "full", [one.store])
    part = merge_stores(tmp_path / "m", [one.store])
    assert (part.stored, part.missing) == (4, 4)
    with pytest.raises(ExtractionError, match="shard: "):
        run_extraction(make_job(8, shard=Shard(2, 2), store=one.store))


def test_merge_and_shard_on_the_command_line(server: Any, write_dataset: Callable[..., Path], tmp_path: Path) -> None:
    data = write_dataset(9)
    for number in (1, 2):
        where = ["--server", server.url, "--spool", server.tap.spool, "--out", tmp_path / f"s{number}"]
        assert auxtap("extract", data, "--canary", 0, *where, "--shard", f"{number}/2").returncode == 0
    result = auxtap("merge", tmp_path / "m", tmp_path / "s1", tmp_path / "s2")
    assert result.returncode == 0 and "9 samples of 2 shards" in result.stdout
    assert auxtap("check", tmp_path / "m").returncode == 0
    assert auxtap("extract", data, *where, "--shard", "3/2").returncode == 2
    drained = auxtap("drain", server.tap.spool, tmp_path / "t", "--until-idle", 0.2)
    assert drained.returncode == 0 and "0 parts" in drained.stdout
