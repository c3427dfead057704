"""A store is looked through: norms against numpy's own, outliers, duplicates, masks, in memory that does not grow."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from auxtap.core.errors import ExtractionError, IntegrityError
from auxtap.core.files import publish_json
from auxtap.extraction.audit.inspection import inspect_store
from auxtap.extraction.audit.state_norms import NormGatherer, RowReader, row_norms
from auxtap.extraction.datasets.reading import read_dataset
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.extraction.store.formats.part_formats import part_format
from auxtap.extraction.store.formats.stored_part import stored_content
from auxtap.extraction.store.ledger import STORED, LedgerLine, LedgerPart, LedgerWriter
from auxtap.extraction.store.store import part_metadata
from auxtap.extraction.store.store_manifest import DatasetFacts, ModelFacts, StageStates, StoreManifest, read_manifest
from auxtap.tap import protocol

Maker = Callable[..., ExtractionJob]


def as_float(data: bytes, dtype: str) -> Any:
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(-1, 8)
    return np.frombuffer(data, {"F16": "<f2", "F32": "<f4"}[dtype]).astype("<f4").reshape(-1, 8)


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_norms_are_those_of_numpy(make_job: Maker, tap: Any, state_rows: Any, dtype: str) -> None:
    tap.dtype, tap.stages = dtype, ((3,), (5,))
    tap.announce()
    job = make_job(20)
    assert run_extraction(job).complete
    found = inspect_store(job.store)
    samples = job.dataset.samples
    assert [state.state for state in found.states] == ["hidden.3", "hidden.5", "final"]
    for state in found.states:
        norms = [
            np.linalg.norm(as_float(state_rows(state.state, s.token_ids(), dtype), dtype), axis=1) for s in samples
        ]
        rest = np.concatenate([each[1:] for each in norms])
        assert state.norms.n_rows == len(rest) and state.norms.not_finite == 0
        assert state.norms.mean == pytest.approx(rest.mean(), rel=1e-5)
        assert state.norms.largest == pytest.approx(rest.max(), rel=1e-5)
        assert state.norms.median == pytest.approx(np.quantile(rest, 0.5, method="inverted_cdf"), rel=0.023)
        assert state.norms.low == pytest.approx(np.quantile(rest, 0.01, method="inverted_cdf"), rel=0.023)
        assert state.first_tokens.mean == pytest.approx(np.mean([each[0] for each in norms]), rel=1e-5)
        largest = norms[[s.sample_id for s in samples].index(state.largest_in)][state.largest_at]
        assert largest == pytest.approx(state.norms.largest, rel=1e-5)
    assert (found.stored, found.n_tokens, found.inspected) == (20, job.dataset.n_tokens, 20)
    assert found.trained_tokens == sum(s.loss_mask.count(1) for s in samples)
    assert sum(found.trained_tenths) == 20 and found.untrained == sum(1 not in s.loss_mask for s in samples)
    assert sum(each.n_samples for each in found.lengths) == 20
    assert len(found.slowest) == 10 and found.slowest[0].seconds >= found.slowest[-1].seconds > 0


def scale(store: Path, sample_index: int, state: str, factor: float) -> None:
    """Multiply the float32 of a state in a stored file."""
    (path,) = (store / "samples").glob(f"{sample_index:08d}.*")
    opened = part_format("safetensors").open(path)
    data = bytearray(path.read_bytes())
    base = len(opened.head or b"")
    slot = next(slot for slot in opened.content.slots if slot.name == state)
    begin, end = base + slot.offset, base + slot.offset + slot.n_bytes
    data[begin:end] = (np.frombuffer(data[begin:end], "<f4") * np.float32(factor)).tobytes()
    path.write_bytes(data)


def test_what_stands_out_is_named(make_job: Maker, tmp_path: Path) -> None:
    records = [{"id": f"n{i}", "input_ids": [i, i + 1, i + 2, i + 3] * 5} for i in range(60)]
    records += [{"id": "again", "input_ids": records[7]["input_ids"], "loss_mask": [0] * 20}]
    records += [{"id": "once more", "input_ids": records[7]["input_ids"]}]
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    job = make_job(dataset=read_dataset(path))
    assert run_extraction(job).complete
    before = inspect_store(job.store)
    assert before.outliers == () and before.untrained == 1
    assert (before.repeated, before.duplicates) == (2, (("n7", "again", "once more"),))
    scale(job.store, 12, "hidden.5", 1000)
    scale(job.store, 30, "final", 0)
    scale(job.store, 44, "hidden.3", math.nan)
    found = inspect_store(job.store)
    assert [(each.sample_id, each.state) for each in found.outliers] == [("n30", "final"), ("n12", "hidden.5")]
    assert found.outliers[1].mean_norm == pytest.approx(1000 * found.outliers[1].usual, rel=0.5)
    states = {state.state: state for state in found.states}
    assert states["hidden.5"].largest_in == "n12"
    assert states["hidden.3"].norms.not_finite == 19 and states["hidden.3"].first_tokens.not_finite == 1
    few = inspect_store(job.store, 10)
    assert (few.inspected, few.stored, few.inspected_tokens, sum(few.trained_tenths)) == (10, 62, 200, 10)


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from auxtap.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_the_command_reports_and_draws(make_job: Maker, tmp_path: Path) -> None:
    job = make_job(12)
    run_extraction(job)
    result = run("inspect", job.store, "--plots", tmp_path / "plots")
    assert result.returncode == 0, result.stderr
    for text in ("hidden.3", "tokens a sample", "trained on", "slow: s/", "norms by state"):
        assert text in result.stdout
    assert "\x1b[" not in result.stdout
    for name, n_marks, tag in (("lengths", 5, "rect"), ("trained", 10, "rect"), ("norms", 3, "circle")):
        root = ElementTree.parse(tmp_path / "plots" / f"{name}.svg").getroot()
        marks = [each for each in root.iter() if each.tag.endswith(tag) and each.get("width") != "100%"]
        assert len(marks) == n_marks, name
        assert all(math.isfinite(float(each.get("y") or each.get("cy") or "nan")) for each in marks)
    record = json.loads(run("inspect", job.store, "--json", "--samples", 4).stdout)
    assert record["inspected"] == 4 and record["stored"] == 12 and len(record["states"]) == 3
    assert record["states"][0]["norms"]["n_rows"] > 0
    missing = run("inspect", tmp_path / "nowhere")
    assert missing.returncode == 7 and "is no store" in missing.stderr


def test_stores_that_cannot_be_looked_through(make_job: Maker, tap: Any) -> None:
    tap.faults[0] = ["failed"] * 3
    job = make_job(1)
    run_extraction(job)
    with pytest.raises(ExtractionError, match="holds no samples yet"):
        inspect_store(job.store)
    tap.faults.clear()
    run_extraction(job)
    (path,) = (job.store / "samples").iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(IntegrityError, match=r"00000000\.pp0\.safetensors cannot be read"):
        inspect_store(job.store)
    path.unlink()
    with pytest.raises(IntegrityError, match=r"00000000\.pp0\.safetensors cannot be read"):
        inspect_store(job.store)


@pytest.mark.parametrize("cut", [1, 3, 8, 31, 32, 33, 200, 10**6])
def test_rows_are_whole_whatever_the_blocks(cut: int) -> None:
    values = np.random.default_rng(3).normal(size=(50, 8)).astype("<f4")
    data = values.tobytes()
    reader = RowReader("F32", 8, 32)
    pieces = [reader.norms(memoryview(data[begin : begin + cut])) for begin in range(0, len(data), cut)]
    assert np.allclose(np.concatenate(pieces), row_norms(data, "F32", 8), rtol=1e-6)
    assert np.allclose(np.concatenate(pieces), np.linalg.norm(values, axis=1))


def test_norms_of_any_size() -> None:
    gatherer = NormGatherer()
    assert gatherer.spread().mean is None
    huge = np.full((2, 8), 3e38, dtype="<f4")
    assert np.isfinite(row_norms(huge.tobytes(), "F32", 8)).all()
    tiny = np.full((3, 8), 1e-30, dtype="<f4")
    assert row_norms(tiny.tobytes(), "F32", 8) == pytest.approx([1e-30 * 8**0.5] * 3, rel=1e-5)
    assert row_norms(np.zeros((2, 8), "<f4").tobytes(), "F32", 8).tolist() == [0, 0]
    wide = np.random.default_rng(1).normal(size=(40, 7168)).astype("<f4")
    assert row_norms(wide.tobytes(), "F32", 7168) == pytest.approx(np.linalg.norm(wide.astype(float), axis=1), rel=1e-5)
    gatherer.add(np.array([0.0, 1e-30, 1.0, 1e39, math.inf, math.nan]))
    spread = gatherer.spread()
    assert (spread.n_rows, spread.not_finite, spread.largest) == (4, 2, 1e39)


MEMORY = r"""
import re, sys
from pathlib import Path
from auxtap.extraction.audit.inspection import inspect_store
found = inspect_store(Path(sys.argv[1]))
assert found.n_tokens == int(sys.argv[2]) and found.states[0].norms.n_rows == found.n_tokens - 1
print(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_a_sample(tmp_path: Path, make_job: Maker) -> None:
    """One sample of 4 and one of 260 MB, both of zeros that take no room on the disk."""
    run_extraction(make_job(1))
    real = read_manifest(tmp_path / "store" / "manifest.json")

    def peak_bytes(n_tokens: int) -> int:
        hidden = 4096
        layout = protocol.part_layout(n_tokens=n_tokens, layers=[3], has_final=True, hidden_size=hidden, dtype="F32")
        store = tmp_path / str(n_tokens)
        (store / "samples").mkdir(parents=True)
        metadata = part_metadata(0, "s", 0, "sha256:" + "0" * 64)
        content = stored_content(layout, metadata)
        name = "samples/00000000.pp0.safetensors"
        with (store / name).open("wb") as file:
            file.write(protocol.encode_header(content.slots, metadata))
            file.truncate(file.tell() + sum(slot.n_bytes for slot in content.slots))
        states = tuple(slot.name for slot in layout.slots[1:])
        manifest = StoreManifest(
            **{
                **{name: getattr(real, name) for name in real.__dataclass_fields__},
                "model": ModelFacts("", "", 8, hidden, 10, 10),
                "stages": (StageStates(0, states),),
                "layers": (3,),
                "draft_ids": None,
                "dataset": DatasetFacts("", 1, n_tokens),
            }
        )
        publish_json(store / "manifest.json", manifest.to_json())
        part = LedgerPart(name, 0, 0, states, 0, "sha256:0", "sha256:0")
        writer = LedgerWriter(store / "ledger.jsonl", 0)
        writer.append(LedgerLine(0, "s", STORED, "", n_tokens, 1, "sha256:0", (part,), ""))
        writer.close()
        command = [sys.executable, "-c", MEMORY, str(store), str(n_tokens)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) << 10

    few, many = peak_bytes(128), peak_bytes(8000)
    assert many - few < 40_000_000, (few, many)
