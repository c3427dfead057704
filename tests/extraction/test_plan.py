"""What an extraction will take is said beforehand, exactly, and it is not begun where it would not end."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auxtap.commands.views.plan_view import rounded_bytes
from auxtap.core.errors import ExtractionError, UsageError
from auxtap.extraction.datasets.reading import Dataset, DatasetSurvey, Sample, survey_dataset
from auxtap.extraction.datasets.record import Place
from auxtap.extraction.datasets.token_file import TokenFile
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.extraction.run.dry_run import Bounds, ExtractionPlan, Room, histogram, make_plan, supposed_topology

Maker = Callable[..., ExtractionJob]


def survey_of(lengths: list[int]) -> DatasetSurvey:
    none = TokenFile()
    samples = tuple(Sample(i, f"s/{i}", Place(Path("x"), i + 1), n, none, 0, "") for i, n in enumerate(lengths))
    return DatasetSurvey(Dataset(Path("x"), "", samples), (), 0)


def plan_of(lengths: list[int], **changes: Any) -> ExtractionPlan:
    values: dict[str, Any] = {"slots": 20, "room": Room(None, None), "bounds": Bounds(), **changes}
    return make_plan(survey_of(lengths), supposed_topology(7168, (3, 31, 59), "bfloat16"), **values)


def test_the_real_run_takes_924_gib() -> None:
    plan = plan_of([1730] * 10_000)
    assert (plan.n_tokens, plan.bytes_per_token) == (17_300_000, 57_344)
    assert plan.state_bytes == 17_300_000 * 57_344
    assert rounded_bytes(plan.state_bytes) == "924 GiB (992,051,200,000 bytes)"
    assert rounded_bytes(plan.store_bytes).startswith("924 GiB")
    assert 0 < plan.store_bytes - plan.state_bytes < plan.state_bytes // 1000
    assert plan.peak_spool_bytes < 21 * 1730 * 57_400


def test_it_is_not_begun_where_it_would_not_end() -> None:
    lengths = [1730] * 100
    needed = plan_of(lengths).needed_bytes
    assert plan_of(lengths, room=Room(None, needed)).obstacle is None
    assert "more bytes" in (plan_of(lengths, room=Room(None, needed - 1)).obstacle or "")
    reserved = plan_of(lengths, room=Room(None, needed), bounds=Bounds(None, 1))
    assert "1 are to stay free" in (reserved.obstacle or "")
    assert "more than the bound" in (plan_of(lengths, bounds=Bounds(needed - 1, 0)).obstacle or "")
    assert "largest sample" in (plan_of(lengths, room=Room(1000, None)).obstacle or "")
    shared = plan_of(lengths, room=Room(1 << 50, needed, same_device=True))
    assert "same disk" in (shared.obstacle or "")
    half = plan_of(lengths, stored_ids=frozenset(f"s/{i}" for i in range(50)), room=Room(None, needed // 2 + 100))
    assert half.obstacle is None and half.already_stored == 50 and half.store_bytes == needed


def test_lengths_are_counted_in_doubling_bins() -> None:
    bins = histogram([1, 2, 3, 4, 7, 8, 1000])
    assert [(b.low, b.high, b.n_samples) for b in bins] == [(1, 1, 1), (2, 3, 2), (4, 7, 2), (8, 15, 1), (512, 1023, 1)]


def test_a_survey_reads_on_whatever_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    good = {"id": "a", "input_ids": [1, 2]}
    path.write_text(
        "\n".join(
            json.dumps(record)
            for record in (good, {"id": "b", "input_ids": []}, {**good}, {"id": "c", "input_ids": [1, 2]}, 7)
        )
    )
    survey = survey_dataset(path)
    assert [sample.sample_id for sample in survey.dataset.samples] == ["a", "c"] and survey.n_repeated == 1
    assert [record.place.number for record in survey.bad] == [2, 3, 5]
    assert "empty" in survey.bad[0].reason and "line 1 already" in survey.bad[1].reason


def test_the_plan_is_what_the_store_then_takes(make_job: Maker, tap: Any) -> None:
    tap.stages = ((3,), (5,))
    tap.announce()
    job = make_job(9)
    from auxtap.extraction.spool.directory import SpoolDirectory
    from auxtap.extraction.spool.topology import read_topology

    with SpoolDirectory(job.spool) as spool:
        topology = read_topology(spool)
    survey = DatasetSurvey(job.dataset, (), 0)
    plan = make_plan(survey, topology, slots=4, room=Room(None, None), bounds=Bounds())
    summary = run_extraction(job)
    # The tap's sha256 is 32 characters longer than xxh3 in the header of each of the 18 files, the rest is exact.
    taken = sum(path.stat().st_size for path in (job.store / "samples").iterdir())
    assert summary.n_bytes == taken
    assert abs(taken - (plan.store_bytes - 9 * 1024)) <= 18 * 40


def test_a_run_that_the_store_cannot_hold_is_refused_before_anything_is_sent(make_job: Maker, server: Any) -> None:
    with pytest.raises(ExtractionError, match="cannot hold the result: the store would take"):
        run_extraction(make_job(5, max_bytes=1000))
    with pytest.raises(ExtractionError, match="are to stay free"):
        run_extraction(make_job(5, reserve_bytes=1 << 60))
    assert not server.requests
    assert run_extraction(make_job(5)).complete


def test_no_topology_of_nonsense() -> None:
    with pytest.raises(UsageError, match="int4"):
        supposed_topology(64, (1,), "int4")


def auxtap(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from auxtap.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_dry_run_without_a_server(write_dataset: Callable[..., Path], tmp_path: Path) -> None:
    data = write_dataset(20)
    result = auxtap("extract", data, "--dry-run", "--hidden-size", 7168, "--layers", "3,31,59")
    assert result.returncode == 0, result.stderr
    assert "57,344" in result.stdout and "tokens a sample" in result.stdout and "#" in result.stdout
    (tmp_path / "config.json").write_text(
        json.dumps({"text_config": {"hidden_size": 64, "max_position_embeddings": 9}, "dtype": "float32"})
    )
    result = auxtap("extract", data, "--dry-run", "--model", tmp_path, "--out", tmp_path / "new/store", "--json")
    plan = json.loads(result.stdout)
    assert plan["bytes_per_token"] == 4 * 64 * 4 and plan["too_long"] > 0 and plan["store_free"] > 0
    assert not (tmp_path / "new").exists()
    data.write_text(data.read_text() + '{"id": "s/0", "input_ids": [1]}\n')
    result = auxtap("extract", data, "--dry-run", "--model", tmp_path)
    assert result.returncode == 1 and "stands on line 1 already" in result.stdout
    assert auxtap("extract", data, "--dry-run").returncode == 2


@pytest.mark.slow
def test_a_dry_run_with_a_server_tries_out_some_samples(
    write_dataset: Callable[..., Path], server: Any, tmp_path: Path
) -> None:
    where = ["--server", server.url, "--spool", server.tap.spool, "--out", tmp_path / "store"]
    result = auxtap("extract", write_dataset(40), "--dry-run", *where, "--calibrate", 5, "--json")
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert len(server.requests) == 5 and plan["tokens_per_s"] > 0 and plan["estimated_s"] > 0
    assert not (tmp_path / "store").exists() and not [p for p in tmp_path.iterdir() if "trial" in p.name]
    assert not [path.name for path in server.tap.spool.iterdir() if path.name.startswith("aux1-")]
    result = auxtap("extract", write_dataset(40), "--dry-run", *where, "--max-bytes", "10K")
    assert result.returncode == 1 and "cannot be begun" in result.stdout
