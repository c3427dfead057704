"""Every kind of damage to a finished store is found and named with its file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auxtap.core.errors import ExtractionError, IntegrityError
from auxtap.extraction.audit.integrity import check_store, require_sound
from auxtap.extraction.run.driver import ExtractionJob, run_extraction

Maker = Callable[..., ExtractionJob]
SAMPLE = "samples/00000001.pp0.safetensors"


@pytest.fixture
def store(make_job: Maker) -> Path:
    job = make_job(3)
    run_extraction(job)
    return job.store


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def findings(store: Path) -> list[tuple[str, str]]:
    return [(str(finding.file), finding.what) for finding in check_store(store).findings]


def edit_ledger(store: Path, index: int, change: Callable[[dict[str, Any]], None]) -> None:
    lines = [json.loads(line) for line in (store / "ledger.jsonl").read_text().splitlines()]
    for line in lines:
        if line["index"] == index:
            change(line)
    (store / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_sound_store(store: Path) -> None:
    report = check_store(store)
    assert (report.n_samples, report.stored, report.n_parts, report.missing) == (3, 3, 3, 0)
    assert report.findings == () and report.n_bytes == sum(p.stat().st_size for p in (store / "samples").iterdir())
    require_sound(store, report)


def test_a_flipped_bit_in_a_state_is_found_twice_over(store: Path) -> None:
    flip(store / SAMPLE, -20)
    assert findings(store) == [
        (SAMPLE, "the digest of the file is not the ledger's"),
        (SAMPLE, "the digest of the states is not the ledger's"),
    ]
    with pytest.raises(IntegrityError, match="2 findings, the first: samples/00000001"):
        require_sound(store, check_store(store))


def test_a_flipped_bit_in_the_mask_is_found(store: Path) -> None:
    flip(store / SAMPLE, -1)
    assert findings(store) == [(SAMPLE, "the digest of the file is not the ledger's")]
    data = bytearray((store / SAMPLE).read_bytes())
    data[-1] = 7
    (store / SAMPLE).write_bytes(data)
    assert (SAMPLE, "loss_mask holds other values than 0 and 1") in findings(store)


@pytest.mark.parametrize("offset", range(0, 400, 7))
def test_no_flipped_bit_of_the_header_passes(store: Path, offset: int) -> None:
    flip(store / SAMPLE, offset)
    assert {file for file, _ in findings(store)} == {SAMPLE}


def test_changed_ids_are_found(store: Path) -> None:
    path = store / SAMPLE
    flip(path, 8 + int.from_bytes(path.read_bytes()[:8], "little"))
    assert (SAMPLE, "the digest of input_ids is not the ledger's") in findings(store)


def test_nan_that_got_in_later_is_found(store: Path) -> None:
    path = store / SAMPLE
    data = path.read_bytes()
    path.write_bytes(data[:-10] + b"\x00\x00\xc0\x7f" + data[-6:])
    assert (SAMPLE, "final holds NaN or infinity") in findings(store)


def test_lengths_and_absence(store: Path) -> None:
    size = (store / SAMPLE).stat().st_size
    (store / SAMPLE).write_bytes((store / SAMPLE).read_bytes()[:-1])
    assert (SAMPLE, f"has {size - 1} bytes, the ledger says {size}") in findings(store)
    (store / SAMPLE).write_bytes(b"")
    assert (SAMPLE, "file ends within the header") in findings(store)
    (store / SAMPLE).unlink()
    assert findings(store) == [(SAMPLE, "missing")]
    (store / SAMPLE).mkdir()
    assert findings(store)


def test_files_that_are_swapped(store: Path) -> None:
    other = store / "samples/00000002.pp0.safetensors"
    data = (store / SAMPLE).read_bytes(), other.read_bytes()
    other.write_bytes(data[0])
    (store / SAMPLE).write_bytes(data[1])
    assert {file for file, _ in findings(store)} == {SAMPLE, "samples/00000002.pp0.safetensors"}


def test_a_link_in_place_of_a_file(store: Path, tmp_path: Path) -> None:
    (store / SAMPLE).rename(tmp_path / "away")
    (store / SAMPLE).symlink_to(tmp_path / "away")
    assert findings(store) == [(SAMPLE, "is no safetensors file")]


def test_strangers_are_named(store: Path) -> None:
    (store / "notes.txt").write_text("")
    (store / "samples/00000009.pp0.safetensors").write_text("")
    assert findings(store) == [
        ("notes.txt", "is no file of a store"),
        ("samples/00000009.pp0.safetensors", "has no ledger line"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.update(parts=[], fate="stored"),
        lambda line: line["parts"][0].update(file="../../../etc/passwd"),
        lambda line: line["parts"][0].update(file="samples/00000002.pp0.safetensors"),
        lambda line: line["parts"][0].update(digest="sha256:00"),
        lambda line: line["parts"][0].update(tap_digest="xxh3_128:" + "0" * 32),
        lambda line: line["parts"][0].update(n_bytes=1),
        lambda line: line["parts"][0].update(states=["hidden.3"]),
        lambda line: line["parts"][0].update(stage=1, file="samples/00000001.pp1.safetensors"),
        lambda line: line.update(n_tokens=4),
        lambda line: line.update(ids_digest="xxh3_128:" + "0" * 32),
        lambda line: line.update(id="other"),
        lambda line: line.update(fate="lost"),
        lambda line: line.update(fate="failed", parts=[]),
        lambda line: line.update(index=77),
        lambda line: line.update(n_tokens=True),
    ],
)
def test_a_ledger_that_lies_is_found(store: Path, change: Callable[[dict[str, Any]], None]) -> None:
    edit_ledger(store, 1, change)
    assert findings(store)


def test_two_ids_with_one_index(store: Path) -> None:
    edit_ledger(store, 2, lambda line: line.update(index=1, fate="failed", parts=[]))
    assert any("both have index 1" in what for _, what in findings(store))


def test_missing_stages_are_named(make_job: Maker, tap: Any) -> None:
    tap.stages = ((3,), (5,))
    tap.announce()
    job = make_job(2)
    run_extraction(job)
    edit_ledger(job.store, 1, lambda line: line["parts"].pop(0))
    assert ("samples/00000001.pp0.safetensors", "missing from the ledger: s/1 has no part of stage 0") in findings(
        job.store
    )


def test_manifests(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ExtractionError, match=r"is no store: it has no manifest.json"):
        check_store(tmp_path / "nowhere")
    manifest = json.loads((store / "manifest.json").read_text())
    manifest["stages"][0]["states"] = ["hidden.3", "final"]
    (store / "manifest.json").write_text(json.dumps(manifest))
    assert any(file == "manifest.json" for file, _ in findings(store))
    for key, value in (("layers", [{"capture_index": 3}]), ("auxtap_store", 2), ("run", "x"), ("model", {}),
                       ("dataset", None), ("sessions", "1"), ("dtype", 3)):  # fmt: skip
        (store / "manifest.json").write_text(json.dumps({**manifest, key: value}))
        with pytest.raises(IntegrityError, match=r"manifest.json is unreadable"):
            check_store(store)


def test_a_store_half_done_is_sound(make_job: Maker, tap: Any) -> None:
    tap.faults[1] = ["400"]
    job = make_job(3)
    run_extraction(job)
    ledger = job.store / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    dropped = next(line for line in lines if json.loads(line)["id"] == "s/0")
    ledger.write_text("".join(line for line in lines if line != dropped))
    (job.store / "samples/00000000.pp0.safetensors").unlink()
    report = check_store(job.store)
    assert (report.stored, report.failed, report.missing, report.findings) == (1, 1, 1, ())
