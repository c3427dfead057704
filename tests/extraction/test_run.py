"""A whole extraction against a server that plays SGLang."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from auxtap.core.draft_ids import EAGLE3_SETTER
from auxtap.core.errors import ExtractionError, IntegrityError, ServerError, UsageError
from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.run.driver import ExtractionJob, ExtractionProgress, run_extraction
from auxtap.extraction.store.reader import StoreReader

Maker = Callable[..., ExtractionJob]


def ledger(store: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (store / "ledger.jsonl").read_text().splitlines()]


def test_stores_every_sample_as_the_tap_gave_it(make_job: Maker, server: Any, state_rows: Any) -> None:
    server.delay_s = 0.03
    job = make_job(7)
    seen: list[ExtractionProgress] = []
    summary = run_extraction(job, seen.append)
    assert (summary.stored, summary.skipped, summary.failed, summary.complete) == (7, 0, 0, True)
    assert summary.tokens == job.dataset.n_tokens and summary.n_bytes > 0
    assert seen[-1].stored == 7 and seen[-1].tokens_done == job.dataset.n_tokens
    for sample in job.dataset.samples:
        tensors = load_file(job.store / f"samples/{sample.index:08d}.pp0.safetensors")
        assert sorted(tensors) == ["final", "hidden.3", "hidden.5", "input_ids", "loss_mask"]
        assert tensors["input_ids"].tolist() == sample.token_ids()
        assert tensors["loss_mask"].tobytes() == sample.loss_mask and tensors["loss_mask"].dtype == np.uint8
        for name in ("hidden.3", "hidden.5", "final"):
            assert tensors[name].dtype == np.float32 and tensors[name].shape == (sample.n_tokens, 8)
            assert tensors[name].tobytes() == state_rows(name, sample.token_ids(), "F32")
    assert not [path for path in job.spool.iterdir() if path.name.startswith("aux1-")]
    assert 1 < server.peak_in_flight <= 4
    report = check_store(job.store)
    assert (report.stored, report.missing, report.findings) == (7, 0, ())


@pytest.mark.parametrize("final", ["pre-norm", "both"])
def test_stores_the_final_states_that_the_server_takes(
    make_job: Maker, server: Any, state_rows: Any, final: str
) -> None:
    server.tap.final = final
    server.tap.announce()
    job = make_job(3)
    assert run_extraction(job).complete
    names = {"pre-norm": ["final_prenorm"], "both": ["final", "final_prenorm"]}[final]
    manifest = json.loads((job.store / "manifest.json").read_text())
    assert (manifest["final"], manifest["stages"][0]["states"]) == (final, ["hidden.3", "hidden.5", *names])
    for sample, stored in zip(job.dataset.samples, StoreReader(job.store), strict=True):
        tensors = stored.load("numpy")
        assert sorted(tensors) == sorted(["input_ids", "loss_mask", "hidden.3", "hidden.5", *names])
        for name in names:
            assert tensors[name].tobytes() == state_rows(name, sample.token_ids(), "F32")
    assert check_store(job.store).findings == ()


def test_a_manifest_that_names_other_final_states_than_its_files_is_found(make_job: Maker) -> None:
    job = make_job(2)
    run_extraction(job)
    path = job.store / "manifest.json"
    path.write_text(path.read_text().replace('"post-norm"', '"both"'))
    assert "its layers are hidden.3, hidden.5, final, final_prenorm" in str(check_store(job.store).findings[0].what)
    path.write_text(path.read_text().replace('"both"', '"before"'))
    with pytest.raises(IntegrityError, match="final is 'before', none of post-norm, pre-norm, both"):
        check_store(job.store)


def test_manifest_says_what_the_store_is_of(make_job: Maker) -> None:
    job = make_job(2)
    run_extraction(job)
    manifest = json.loads((job.store / "manifest.json").read_text())
    assert manifest["model"]["model_class"] == "TinyForCausalLM" and manifest["hidden_size"] == 8
    assert manifest["layers"][0] == {
        "capture_index": 3,
        "draft_config_id": 2,
        "transformers_hidden_states": 3,
        "output_of_layer": 2,
    }
    assert manifest["draft_config_ids"] == {EAGLE3_SETTER: [2, 4]}
    assert manifest["final"] == "post-norm" and manifest["dtype"] == "F32" and manifest["sessions"] == 1
    assert manifest["release"] == "0.5.9" and manifest["patch_digest"] == "sha256:p"
    assert manifest["stages"] == [{"pp": 0, "states": ["hidden.3", "hidden.5", "final"]}]
    assert manifest["server_arguments"]["attention_backend"] == "torch_native"
    assert "hunter2" not in (job.store / "manifest.json").read_text()


def test_the_ids_are_those_of_the_served_class(make_job: Maker, tap: Any) -> None:
    tap.setters = {
        EAGLE3_SETTER: ((1, "layer_ids and layer_ids[0] == 1"), (0, "otherwise")),
        "set_dflash_layers_to_capture": ((1, None),),
    }
    tap.announce()
    job = make_job(2)
    run_extraction(job)
    path = job.store / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["draft_config_ids"] == {EAGLE3_SETTER: [3, 5], "set_dflash_layers_to_capture": [2, 4]}
    assert [layer["draft_config_id"] for layer in manifest["layers"]] == [3, 5]
    for stated, problem in (
        ({EAGLE3_SETTER: [3]}, "not as many"),
        ({EAGLE3_SETTER: ["3", 5]}, "Expected `int`"),
        ([], "Expected `object"),
    ):
        path.write_text(json.dumps(manifest | {"draft_config_ids": stated}))
        with pytest.raises(IntegrityError, match=problem):
            check_store(job.store)


def test_a_class_without_setters_has_no_ids_and_an_earlier_store_is_still_read(make_job: Maker, tap: Any) -> None:
    tap.setters = {}
    tap.announce()
    job = make_job(2)
    run_extraction(job)
    path = job.store / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["draft_config_ids"] == {} and manifest["layers"][0]["draft_config_id"] is None
    earlier = {key: value for key, value in manifest.items() if key != "draft_config_ids"}
    for layer in earlier["layers"]:
        layer["draft_config_id"] = layer["capture_index"] - 1
    path.write_text(json.dumps(earlier))
    assert check_store(job.store).findings == ()


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_half_precision_bytes_are_kept(make_job: Maker, tap: Any, state_rows: Any, dtype: str) -> None:
    tap.dtype = dtype
    tap.announce()
    job = make_job(3)
    assert run_extraction(job).complete
    assert check_store(job.store).findings == ()
    data = (job.store / "samples/00000002.pp0.safetensors").read_bytes()
    assert state_rows("hidden.3", job.dataset.samples[2].token_ids(), dtype) in data


def test_two_stages_give_two_files_a_sample(make_job: Maker, tap: Any) -> None:
    tap.stages = ((2, 3), (6,))
    tap.announce()
    job = make_job(4)
    assert run_extraction(job).stored == 4
    assert [part["states"] for part in ledger(job.store)[0]["parts"]] == [
        ["hidden.2", "hidden.3"],
        ["hidden.6", "final"],
    ]
    assert len(list((job.store / "samples").iterdir())) == 8
    assert check_store(job.store).findings == ()


def test_a_stage_that_holds_nothing_leaves_no_part(make_job: Maker, tap: Any) -> None:
    tap.stages = ((), (6,))
    tap.announce()
    job = make_job(2)
    assert run_extraction(job).stored == 2
    assert [part["stage"] for part in ledger(job.store)[0]["parts"]] == [1]


def test_parts_may_come_from_any_data_parallel_group(make_job: Maker, tap: Any) -> None:
    tap.dp_size = 2
    tap.announce()
    job = make_job(4)
    assert run_extraction(job).stored == 4
    assert {part["dp"] for line in ledger(job.store) for part in line["parts"]} == {0, 1}
    assert check_store(job.store).findings == ()


def test_a_sample_longer_than_the_context_is_skipped_and_not_sent(make_job: Maker, tmp_path: Path, server: Any) -> None:
    from auxtap.extraction.datasets.reading import read_dataset

    path = tmp_path / "long.jsonl"
    lines = [
        {"id": "short", "input_ids": [1, 2]},
        {"id": "fits", "input_ids": [3] * 50},
        {"id": "long", "input_ids": [3] * 51},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    job = make_job(dataset=read_dataset(path))
    summary = run_extraction(job)
    assert (summary.stored, summary.skipped, summary.complete) == (2, 1, False)
    assert summary.not_stored[0].reason == "51 tokens are more than the server takes (50)"
    assert {rid.index for rid in server.requests} == {0, 1}
    again = run_extraction(job)
    assert (again.already_stored, again.skipped) == (2, 1) and len(ledger(job.store)) == 3
    assert check_store(job.store).skipped == 1


def test_the_spool_is_bounded_and_too_big_a_sample_fails_alone(make_job: Maker, server: Any) -> None:
    peak = 0

    def look(progress: ExtractionProgress) -> None:
        nonlocal peak
        peak = max(peak, progress.spool_bytes)

    server.delay_s = 0.02
    job = make_job(12, max_spool_bytes=8192)
    summary = run_extraction(job, look)
    assert summary.complete and server.peak_in_flight <= 2 and peak <= 8192
    small = make_job(3, max_spool_bytes=100, store=job.store.with_name("other"))
    summary = run_extraction(small)
    assert summary.failed == 3 and "more than the bound of 100" in summary.not_stored[0].reason


def test_unattributed_batches_are_counted_and_told(make_job: Maker, tap: Any) -> None:
    tap.faults[1] = ["unattributed"]
    seen: list[ExtractionProgress] = []
    summary = run_extraction(make_job(3), seen.append)
    assert (summary.stored, summary.unattributed, summary.tap_errors) == (3, 1, 1)
    assert summary.tap_last_error == "lost a batch" and not summary.complete
    assert any("1 unattributed batches" in (progress.message or "") for progress in seen)


def test_troubles_from_before_the_run_are_not_ours(make_job: Maker, tap: Any) -> None:
    from dataclasses import replace

    tap.stats = replace(tap.stats, unattributed_batches=5, errors=2)
    tap.publish_stats()
    assert run_extraction(make_job(2)).complete


def test_an_id_outside_the_vocabulary_is_refused_before_anything_is_sent(
    make_job: Maker, tmp_path: Path, server: Any
) -> None:
    from auxtap.extraction.datasets.reading import read_dataset

    path = tmp_path / "wide.jsonl"
    path.write_text('{"id": "a", "input_ids": [1]}\n\n{"id": "b", "input_ids": [99, 100]}\n')
    with pytest.raises(ExtractionError, match=r"wide.jsonl:3: token id 100 is outside .* 100"):
        run_extraction(make_job(dataset=read_dataset(path)))
    assert not server.requests and not (tmp_path / "store").exists()


def test_a_server_that_is_not_there(make_job: Maker, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="cannot be reached"):
        run_extraction(make_job(server_url="http://127.0.0.1:9"))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"server_url": "ftp://x"},
        {"server_url": "nonsense"},
        {"max_new_tokens": 1025},
        {"concurrency": 0},
        {"max_tries": 0},
        {"part_format": "npz"},
        {"timeout_s": 0},
    ],
)
def test_jobs_that_cannot_be(make_job: Maker, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        run_extraction(make_job(**changes))


def test_a_folder_that_is_no_store_is_left_alone(make_job: Maker, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("precious")
    with pytest.raises(ExtractionError, match=r"no store and not empty: it holds thesis.txt"):
        run_extraction(make_job(store=tmp_path / "mine"))
    assert [path.name for path in (tmp_path / "mine").iterdir() if path.name != ".lock"] == ["thesis.txt"]
