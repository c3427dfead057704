"""Reading a finished store back."""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

import auxtap
from auxtap.core.errors import ExtractionError, IntegrityError, UsageError
from auxtap.extraction.run.driver import ExtractionJob, run_extraction

Maker = Callable[..., ExtractionJob]


def test_samples_of_all_stages_are_joined(make_job: Maker, tap: Any, state_rows: Any) -> None:
    tap.stages = ((3,), (5,))
    tap.announce()
    job = make_job(4)
    run_extraction(job)
    store = auxtap.open_store(job.store)
    assert len(store) == 4
    assert [sample.index for sample in store] == [0, 1, 2, 3]
    assert store.manifest.model.hidden_size == 8
    for stored, sample in zip(store, job.dataset.samples, strict=True):
        tensors = stored.load("numpy")
        assert sorted(tensors) == ["final", "hidden.3", "hidden.5", "input_ids", "loss_mask"]
        assert tensors["input_ids"].tolist() == sample.token_ids()
        for name in ("hidden.3", "hidden.5", "final"):
            assert tensors[name].tobytes() == state_rows(name, sample.token_ids(), "F32")
        assert store.by_id(sample.sample_id) == stored
    assert store[-1] == store[3]
    assert [sample.index for sample in store[1:3]] == [1, 2]
    with pytest.raises(IndexError):
        store[4]
    with pytest.raises(KeyError):
        store.by_id("nobody")


def test_samples_that_were_not_stored_are_left_out(make_job: Maker, tap: Any) -> None:
    tap.faults[1] = ["failed"] * 3
    job = make_job(3)
    run_extraction(job)
    assert [sample.index for sample in auxtap.open_store(job.store)] == [0, 2]


def test_a_folder_that_is_no_store(tmp_path: Any) -> None:
    with pytest.raises(ExtractionError, match="is no store"):
        auxtap.open_store(tmp_path)


def test_a_file_that_is_gone_or_broken_is_named(make_job: Maker) -> None:
    job = make_job(2)
    run_extraction(job)
    first, second = auxtap.open_store(job.store)
    first.files[0].unlink()
    second.files[0].write_bytes(b"no safetensors")
    for sample in (first, second):
        with pytest.raises(IntegrityError, match=sample.files[0].name):
            sample.load("numpy")


def test_numpy_has_no_bfloat16(make_job: Maker, tap: Any) -> None:
    tap.dtype = "BF16"
    tap.announce()
    job = make_job(1)
    run_extraction(job)
    with pytest.raises(UsageError, match="cannot be read with numpy") as raised:
        auxtap.open_store(job.store)[0].load("numpy")
    assert raised.value.hint


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_the_extra_is_named(make_job: Maker) -> None:
    job = make_job(1)
    run_extraction(job)
    store = auxtap.open_store(job.store)
    for read in (store[0].load, store.torch_dataset):
        with pytest.raises(UsageError) as raised:
            read()
        assert "auxtap[pt]" in (raised.value.hint or "")
