"""Stores at fsspec URLs: the samples are read back, manifest and ledger lie beside them, another machine goes on."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.extraction.audit.integrity import check_remote
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.extraction.store.remote_samples import RemoteSamples

Maker = Callable[..., ExtractionJob]


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    fsspec = pytest.importorskip("fsspec")
    name = f"memory://{tmp_path.name}/store" if request.param == "memory" else f"file://{tmp_path}/remote"
    yield name
    if request.param == "memory":
        fsspec.filesystem("memory").store.clear()


def test_samples_lie_at_the_url_and_a_second_run_takes_none_again(
    make_job: Maker, tap: Any, server: Any, url: str
) -> None:
    tap.stages = ((3,), (5,))
    tap.announce()
    job = make_job(7, samples_url=url)
    assert run_extraction(job).complete
    assert list((job.store / "samples").iterdir()) == []
    report = check_remote(url)
    assert (report.stored, report.n_parts, report.findings) == (7, 14, ())
    again = run_extraction(job)
    assert (again.already_stored, again.stored) == (7, 0) and len(server.requests) == 7


def test_another_machine_goes_on_from_what_lies_there(
    make_job: Maker, tap: Any, server: Any, url: str, tmp_path: Path
) -> None:
    tap.faults = {index: ["400"] for index in (2, 5)}
    assert run_extraction(make_job(9, samples_url=url)).failed == 2
    elsewhere = make_job(9, samples_url=url, store=tmp_path / "other-catalog")
    summary = run_extraction(elsewhere)
    assert (summary.already_stored, summary.stored, summary.complete) == (7, 2, True)
    assert check_remote(url).findings == ()


def test_what_was_damaged_or_lost_there_is_found_and_taken_again(make_job: Maker, url: str, tmp_path: Path) -> None:
    job = make_job(5, samples_url=url)
    run_extraction(job)
    remote = RemoteSamples(url)
    names = sorted(remote.list_sizes("samples"))
    assert remote.fetch(names[1], tmp_path / "part")
    data = bytearray((tmp_path / "part").read_bytes())
    data[-20] ^= 1
    (tmp_path / "part").write_bytes(data)
    remote.put(tmp_path / "part", names[1])
    remote.remove(names[3])
    (tmp_path / "stranger").write_text("x")
    remote.put(tmp_path / "stranger", "samples/stranger")
    found = {(str(finding.file), finding.what) for finding in check_remote(url).findings}
    assert (names[1], "the digest of the file is not the ledger's") in found
    assert (names[3], "missing") in found and ("samples/stranger", "has no ledger line") in found
    remote.remove(names[1])
    remote.remove("samples/stranger")
    summary = run_extraction(job)
    assert (summary.already_stored, summary.stored) == (3, 2)
    assert check_remote(url).findings == ()


def test_an_upload_that_arrives_damaged_is_tried_again(
    make_job: Maker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, damaged = RemoteSamples._digest, [True, True]

    def digest(self: RemoteSamples, path: str, like: str) -> str:
        return "xxh3_128:" + "0" * 32 if damaged and damaged.pop() else original(self, path, like)

    monkeypatch.setattr(RemoteSamples, "_digest", digest)
    messages: list[str] = []
    job = make_job(4, samples_url=url)
    assert run_extraction(job, lambda progress: messages.append(progress.message or "")).complete
    assert sum("was damaged on its way" in message for message in messages) == 2
    assert check_remote(url).findings == ()
    assert not [name for name in RemoteSamples(url).list_sizes("samples") if name.endswith(".tmp")]


def test_whatever_a_protocol_raises_is_retried_and_then_ends_the_run(
    make_job: Maker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StrangeError(Exception):
        pass

    def fail(self: RemoteSamples, path: str, like: str) -> str:
        raise StrangeError("bucket on fire")

    monkeypatch.setattr(RemoteSamples, "_digest", fail)
    with pytest.raises(ExtractionError, match="StrangeError: bucket on fire"):
        run_extraction(make_job(2, samples_url=url, store_tries=2))


def test_urls_that_cannot_be(make_job: Maker, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot store at nonsense://x"):
        RemoteSamples("nonsense://x")
    with pytest.raises(UsageError, match=r"safetensors only|needs torch"):
        run_extraction(make_job(1, samples_url="memory://x", part_format="pt"))
    with pytest.raises(ExtractionError, match="is no store"):
        check_remote(f"file://{tmp_path}/nowhere")


@pytest.mark.slow
def test_on_the_command_line(server: Any, write_dataset: Callable[..., Path], tmp_path: Path) -> None:
    url = f"file://{tmp_path}/far/store"
    main = [sys.executable, "-c", "from auxtap.cli import main; main()"]
    where = ["--server", server.url, "--spool", str(server.tap.spool), "--out", url]
    extract = [*main, "extract", str(write_dataset(4)), *where, "--canary", "0"]
    extract += ["--catalog", str(tmp_path / "catalog")]
    assert subprocess.run(extract, capture_output=True, timeout=60).returncode == 0
    assert len(list((tmp_path / "far/store/samples").iterdir())) == 4
    check = subprocess.run([*main, "check", url], capture_output=True, text=True, timeout=60)
    assert check.returncode == 0 and "4 samples in 4 files" in check.stdout
