"""The writer thread: order, bounded memory, and failures that are seen."""

import errno
import json
import os
import threading
import time

import pytest
from safetensors.numpy import load_file

from auxtap.tap import protocol, writer
from auxtap.tap.protocol import PartName, RequestId
from auxtap.tap.spool import SpoolDirectory
from auxtap.tap.writer import Begin, Block, End, Failure, PendingBudget, Writer

NAME = PartName(RequestId("00000000", 3, 0), 0, 0, protocol.WRITING)
LAYOUT = protocol.part_layout(n_tokens=2, layers=[2], has_final=False, hidden_size=2, dtype="F32")
DESCRIPTOR = protocol.descriptor_name("h", 0, 0)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "spool"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def started(folder):
    thread = Writer(SpoolDirectory(folder), DESCRIPTOR, "nonce", PendingBudget(1 << 20))
    thread.start()
    yield thread
    thread.stop()


def _block(thread: Writer, slot: str, first_row: int, data: bytes, name: PartName = NAME) -> None:
    assert thread.budget.acquire(len(data), 0)
    thread.submit(Block(name, slot, first_row, len(data), lambda: memoryview(data)))


def _submit_rows(thread: Writer, first_row: int, n_rows: int) -> None:
    thread.submit(Begin(NAME, LAYOUT, first_row))
    _block(thread, "input_ids", first_row, bytes(8 * n_rows))
    _block(thread, "hidden.2", first_row, bytes(8 * n_rows))
    thread.submit(End(NAME, first_row, n_rows))


def _stats(folder) -> protocol.TapStats:
    return protocol.TapStats.from_json(json.loads((folder / protocol.stats_name(DESCRIPTOR)).read_text()))


def _failure(folder) -> protocol.FailureRecord:
    name = PartName(NAME.rid, 0, 0, protocol.FAILED)
    return protocol.FailureRecord.from_json(json.loads((folder / str(name)).read_text()))


def test_two_chunks_make_one_part(started, folder):
    _submit_rows(started, 0, 1)
    _submit_rows(started, 1, 1)
    started.stop()
    assert load_file(folder / "aux1-00000000-3-0.pp0.dp0.ready")["hidden.2"].shape == (2, 2)
    assert _stats(folder).parts_ready == 1
    assert _stats(folder).bytes_written == 32
    assert started.budget.acquire(1 << 20, 0), "every byte came back"


def test_a_finished_part_is_not_written_again(started, folder):
    _submit_rows(started, 0, 2)
    _submit_rows(started, 0, 2)
    started.stop()
    assert _stats(folder).parts_ready == 1
    assert not list(folder.glob("*.part"))


def test_rows_from_the_prefix_cache_are_a_failure(started, folder):
    _submit_rows(started, 1, 1)
    started.stop()
    assert "begin at 1" in _failure(folder).reason
    assert "--disable-radix-cache" in _failure(folder).reason
    assert not list(folder.glob("*.part"))
    assert not list(folder.glob("*.ready"))
    assert started.budget.acquire(1 << 20, 0)


def test_a_failure_ends_the_part(started, folder):
    started.submit(Begin(NAME, LAYOUT, 0))
    _block(started, "input_ids", 0, bytes(16))
    started.submit(Failure(NAME, "because"))
    started.submit(Failure(NAME, "once is enough"))
    _block(started, "hidden.2", 0, bytes(16))
    started.submit(End(NAME, 0, 2))
    started.stop()
    assert _failure(folder) == protocol.FailureRecord(str(NAME.rid), "nonce", "because")
    assert _stats(folder).parts_failed == 1
    assert not list(folder.glob("*.part"))


def test_a_copy_that_fails_is_a_failed_sample(started, folder):
    def broken() -> memoryview:
        raise RuntimeError("CUDA error")

    started.submit(Begin(NAME, LAYOUT, 0))
    started.budget.acquire(16, 0)
    started.submit(Block(NAME, "hidden.2", 0, 16, broken))
    started.submit(End(NAME, 0, 2))
    started.stop()
    assert "CUDA error" in _failure(folder).reason
    assert started.budget.acquire(1 << 20, 0)


def test_a_full_spool_fails_the_sample_and_tells_when_there_is_room(folder, monkeypatch):
    full = threading.Event()
    full.set()
    spool = SpoolDirectory(folder)
    real_create = spool.create

    def create(name: str) -> int:
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_create(name)

    monkeypatch.setattr(spool, "create", create)
    monkeypatch.setattr(writer, "IDLE_S", 0.01)
    thread = Writer(spool, DESCRIPTOR, "nonce", PendingBudget(1 << 20))
    thread.start()
    _submit_rows(thread, 0, 2)
    while not thread._unpublished:
        time.sleep(0.005)
    assert os.listdir(folder) == []
    full.clear()
    thread.stop()
    assert "No space left" in _failure(folder).reason


def test_a_spool_that_fills_up_while_rows_are_written_fails_their_sample_only(folder, monkeypatch):
    spool, pwrite = SpoolDirectory(folder), os.pwrite
    thread = Writer(spool, DESCRIPTOR, "nonce", PendingBudget(1 << 20))
    other = PartName(RequestId("00000000", 4, 0), 0, 0, protocol.WRITING)
    full = threading.Event()

    def write(handle: int, data: memoryview, offset: int) -> int:
        if full.is_set() and offset > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(handle, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    thread.start()
    _submit_rows(thread, 0, 1)
    while thread._stats.bytes_written < 16:
        time.sleep(0.005)
    full.set()
    _submit_rows(thread, 1, 1)
    while not list(folder.glob("*.failed")):
        time.sleep(0.005)
    full.clear()
    for job in (Begin(other, LAYOUT, 0), End(other, 0, 2)):
        if isinstance(job, End):
            _block(thread, "input_ids", 0, bytes(16), other)
            _block(thread, "hidden.2", 0, bytes(16), other)
        thread.submit(job)
    thread.stop()
    assert "No space left" in _failure(folder).reason
    assert not list(folder.glob("*.part")) and len(list(folder.glob("*.ready"))) == 1
    assert thread.budget.acquire(1 << 20, 0)


def test_parts_that_stand_still_are_given_up(folder, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(writer, "IDLE_S", 0.01)
    thread = Writer(SpoolDirectory(folder), DESCRIPTOR, "nonce", PendingBudget(1 << 20), clock=lambda: now[0])
    thread.start()
    thread.submit(Begin(NAME, LAYOUT, 0))
    while not list(folder.glob("*.part")):
        time.sleep(0.005)
    now[0] = writer.PART_IDLE_S + 1
    while not list(folder.glob("*.failed")):
        time.sleep(0.005)
    thread.stop()
    assert "no more rows" in _failure(folder).reason


def test_budget_waits_and_gives_up():
    budget = PendingBudget(10)
    assert budget.acquire(10, 0)
    assert not budget.acquire(1, 0.01)
    threading.Timer(0.02, budget.release, [10]).start()
    assert budget.acquire(4, 5)
    assert budget.peak == 10
