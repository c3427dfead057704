"""Faults of real file systems: full, read-only, gone, damaged, with planted files; and clocks that go back."""

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from auxtap.core.errors import ExtractionError, IntegrityError
from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.tap import protocol
from auxtap.tap.protocol import PartName, RequestId
from auxtap.tap.spool import SpoolDirectory
from auxtap.tap.writer import Begin, Block, End, PendingBudget, Writer

Maker = Callable[..., ExtractionJob]
Mounter = Callable[[str], Path]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Mounter]:
    """Mount a real tmpfs of a given size."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        path = tmp_path / f"disk-{len(mounted)}"
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", str(path)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            pytest.skip(f"cannot mount a file system here: {result.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_full_disk_ends_the_run_and_it_goes_on_when_there_is_room(
    make_job: Maker, small_disk: Mounter, server: Any
) -> None:
    disk = small_disk("512k")
    ballast = disk / "ballast"
    server.delay_s = 0.01

    def fill(rid: Any) -> None:
        if server.reached(20):
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)

    server.before_answer = fill
    job = make_job(60, store=disk / "store")
    with pytest.raises(ExtractionError, match=r"cannot be written: No space left on device") as raised:
        run_extraction(job)
    assert "make room" in (raised.value.hint or "")
    report = check_store(job.store)
    assert 0 < report.stored < 60 and report.findings == ()
    ballast.unlink()
    summary = run_extraction(job)
    assert summary.already_stored == report.stored and summary.complete
    assert check_store(job.store).findings == ()


def test_a_disk_too_small_is_refused_before_anything_is_sent(make_job: Maker, small_disk: Mounter, server: Any) -> None:
    job = make_job(60, store=small_disk("64k") / "store")
    with pytest.raises(ExtractionError, match="cannot hold the result: the store needs"):
        run_extraction(job)
    assert not server.requests


def test_the_reserve_is_kept_free(make_job: Maker, small_disk: Mounter, server: Any) -> None:
    disk = small_disk("1m")
    server.delay_s = 0.02

    def fill(rid: Any) -> None:
        if server.reached(10):
            (disk / "ballast").write_bytes(b"x" * (800 << 10))

    server.before_answer = fill
    job = make_job(60, store=disk / "store", reserve_bytes=300 << 10)
    with pytest.raises(ExtractionError, match="are to stay free"):
        run_extraction(job)
    assert check_store(job.store).findings == ()


def test_a_read_only_store_is_refused_and_can_be_checked(make_job: Maker, small_disk: Mounter, server: Any) -> None:
    disk = small_disk("1m")
    job = make_job(5, store=disk / "store")
    run_extraction(job)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    n_requests = len(server.requests)
    with pytest.raises(ExtractionError, match=r"cannot be written: Read-only file system"):
        run_extraction(job)
    assert len(server.requests) == n_requests
    assert check_store(job.store).stored == 5
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert run_extraction(job).already_stored == 5


def test_a_store_that_becomes_read_only_in_the_middle(make_job: Maker, small_disk: Mounter, server: Any) -> None:
    disk = small_disk("1m")
    server.delay_s = 0.02

    def freeze(rid: Any) -> None:
        if server.reached(15):
            # Files that are open for writing keep a file system from being frozen: tried until there are none.
            while subprocess.run(["mount", "-o", "remount,ro", str(disk)], capture_output=True).returncode != 0:
                shutil.rmtree(disk / "store/samples", ignore_errors=True)
                break

    server.before_answer = freeze
    job = make_job(40, store=disk / "store")
    with pytest.raises(ExtractionError, match=r"cannot be written: (Read-only file system|No such file or directory)"):
        run_extraction(job)
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    server.before_answer = lambda rid: None
    assert run_extraction(job).complete and check_store(job.store).findings == ()


def test_a_full_spool_is_a_failure_of_its_sample_and_the_writer_lives(small_disk: Mounter) -> None:
    """The tap's own writer on a real full tmpfs."""
    spool = small_disk("256k")
    spool.chmod(0o700)
    writer = Writer(SpoolDirectory(spool), "rank-h-0-0.json", "n", PendingBudget(1 << 20))
    writer.start()
    (spool / "ballast").write_bytes(b"x" * (150 << 10))

    def send(index: int, n_tokens: int) -> None:
        name = PartName(RequestId("00000000", index, 1), 0, 0, protocol.WRITING)
        layout = protocol.part_layout(n_tokens=n_tokens, layers=[2], has_final=True, hidden_size=64, dtype="F32")
        writer.submit(Begin(name, layout, 0))
        for slot in layout.slots:
            assert writer.budget.acquire(slot.n_bytes, 5.0)
            data = memoryview(bytes(slot.n_bytes))
            writer.submit(Block(name, slot.name, 0, slot.n_bytes, lambda data=data: data))  # type: ignore[misc]
        writer.submit(End(name, 0, n_tokens))

    send(1, 300)
    send(2, 20)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not (spool / "aux1-00000000-2-1.pp0.dp0.ready").exists():
        time.sleep(0.01)
    record = json.loads((spool / "aux1-00000000-1-1.pp0.dp0.failed").read_text())
    assert "No space left on device" in record["reason"]
    (spool / "ballast").unlink()
    send(3, 300)
    writer.stop()
    names = {path.name for path in spool.iterdir()}
    assert "aux1-00000000-3-1.pp0.dp0.ready" in names and not [name for name in names if name.endswith(".part")]


def test_a_spool_removed_in_the_middle_ends_the_run_and_a_new_one_goes_on(
    make_job: Maker, tap: Any, server: Any
) -> None:
    server.delay_s = 0.02

    def remove(rid: Any) -> None:
        if server.reached(10):
            shutil.rmtree(tap.spool, ignore_errors=True)

    server.before_answer = remove
    job = make_job(40)
    with pytest.raises(ExtractionError, match="was removed"):
        run_extraction(job)
    assert check_store(job.store).findings == ()
    server.before_answer = lambda rid: None
    tap.spool.mkdir(mode=0o700)
    tap.announce()
    assert run_extraction(job).complete


@pytest.mark.parametrize("where", ["ids", "states", "header", "end"])
def test_bits_that_flip_in_the_spool_never_reach_the_store(make_job: Maker, tap: Any, server: Any, where: str) -> None:
    """Every first try of a sample is damaged after the tap has published it."""
    own = tap.answer

    def answer(rid: Any, ids: list[int], fault: str | None) -> None:
        own(rid, ids, fault)
        if rid.attempt % 100 != 1:
            return
        path = tap.spool / str(PartName(rid, 0, 0, protocol.READY))
        data = bytearray(path.read_bytes())
        head = protocol.header_length(bytes(data[:8]))
        offset = {"ids": head, "states": (head + len(data)) // 2, "header": 20, "end": len(data) - 1}[where]
        data[offset] ^= 0x10
        path.write_bytes(data)

    tap.answer = answer
    job = make_job(8)
    assert run_extraction(job).complete
    assert check_store(job.store).findings == ()
    assert len(server.requests) == 16
    line = json.loads((job.store / "ledger.jsonl").read_text().splitlines()[0])
    assert line["attempts"] == 2


def test_a_clock_that_goes_back_changes_nothing(make_job: Maker, monkeypatch: pytest.MonkeyPatch, server: Any) -> None:
    """Wall-clock time is written down and never relied upon; only the monotonic clock counts seconds."""
    job = make_job(6)
    wall = time.time()
    monkeypatch.setattr(time, "time", lambda: wall - 10 * 365 * 86400)
    stop = threading.Event()

    def wobble() -> None:
        for path in [*job.spool.iterdir(), *job.store.glob("*")]:
            with contextlib.suppress(OSError):
                os.utime(path, (1, 1))

    server.before_answer = lambda rid: wobble()
    assert run_extraction(job).complete
    for path in job.store.rglob("*"):
        os.utime(path, (4e9, 4e9))
    assert run_extraction(job).already_stored == 6
    assert check_store(job.store).findings == ()
    stop.set()


@pytest.mark.parametrize("planted", ["link", "directory", "fifo", "theirs"])
def test_planted_files_are_refused_and_nothing_behind_them_is_read(
    make_job: Maker, tap: Any, tmp_path: Path, planted: str
) -> None:
    if planted == "theirs" and os.geteuid() != 0:
        pytest.skip("needs root to give a file away")
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret" * 1000)
    own = tap.answer

    def answer(rid: Any, ids: list[int], fault: str | None) -> None:
        path = tap.spool / str(PartName(rid, 0, 0, protocol.READY))
        if rid.attempt % 100 != 1:
            own(rid, ids, fault)
        elif planted == "link":
            path.symlink_to(secret)
        elif planted == "directory":
            path.mkdir()
        elif planted == "fifo":
            os.mkfifo(path)
        else:
            own(rid, ids, fault)
            os.chown(path, 12345, 12345)

    tap.answer = answer
    job = make_job(3)
    assert run_extraction(job).complete
    assert check_store(job.store).findings == ()
    assert secret.read_bytes() == b"secret" * 1000
    for path in job.store.rglob("*"):
        assert path.is_dir() or b"secret" not in path.read_bytes()


def test_a_ledger_cut_anywhere_is_mended_or_named(make_job: Maker, server: Any) -> None:
    job = make_job(3)
    run_extraction(job)
    ledger = job.store / "ledger.jsonl"
    whole = ledger.read_bytes()
    last = len(whole) - whole[:-1].rfind(b"\n") - 1
    for cut in (1, 2, last // 2, last - 1, last):
        ledger.write_bytes(whole[:-cut])
        assert run_extraction(job).complete
        assert check_store(job.store).findings == ()
    ledger.write_bytes(whole[:10] + b"\xff" + whole[11:])
    with pytest.raises(IntegrityError, match=r"ledger.jsonl:1"):
        run_extraction(job)
