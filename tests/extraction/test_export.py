"""Exports without a trainer: what is refused, gone on with, linked, and never believed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from safetensors.numpy import load_file

from auxtap.commands.export import check_servers, split_format
from auxtap.core.errors import ExtractionError, IntegrityError, UsageError
from auxtap.extraction.export.contract import TokenRow
from auxtap.extraction.export.exporting import ExportJob, ExportProgress, export_store
from auxtap.extraction.export.formats import safetensors, specforge, speculators
from auxtap.extraction.export.torch_file import require_torch
from auxtap.extraction.export.trainer_formats import trainer_format, trainer_formats
from auxtap.extraction.export.vocabulary import choose_draft_vocabulary, count_trained
from auxtap.extraction.export.whole_sample import SamplePlace
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.extraction.run.job import ServerPlace
from auxtap.extraction.spool.topology import open_replicas
from auxtap.extraction.store.reader import StoreReader
from auxtap.tests.extraction.conftest import FakeTap

Maker = Callable[..., ExtractionJob]


@pytest.fixture
def make_store(make_job: Maker, tap: Any, server: Any) -> Callable[..., Path]:
    """Return a function that makes a store of `n` samples from the stages and final states it is given."""

    def make(n: int = 6, stages: Any = ((3,), (5, 6)), final: str = "both", name: str = "store") -> Path:
        tap.stages, tap.final = stages, final
        tap.announce()
        job = make_job(n, store=tap.spool.with_name(name))
        assert run_extraction(job).complete
        return job.store

    return make


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_format_has_a_name_and_groups_its_files() -> None:
    names = [each.name for each in trainer_formats()]
    assert names == ["angelslim", "ge_data", "modelopt", "pt", "safetensors", "specforge", "speculators"]
    place = SamplePlace(index=12345, row=7, sample_id="../../x", n_tokens=3)
    assert [str(each.file_of(place)) for each in trainer_formats()] == [
        "rows_10000-15000/data_12345.ckpt",
        "data_12345.ckpt",
        "00012345.pt",
        "samples/00012345.pt",
        "samples/00012345.safetensors",
        "rows_12000-14000/data_12345.ckpt",
        "hidden_states/hs_7.safetensors",
    ]
    with pytest.raises(UsageError, match="unknown format 'specforged'") as raised:
        trainer_format("specforged")
    assert "specforge, speculators" in (raised.value.hint or "")


def test_the_stages_are_joined(make_store: Any, tmp_path: Path) -> None:
    store = make_store()
    seen: list[ExportProgress] = []
    summary = export_store(ExportJob(store, "safetensors", tmp_path / "out"), seen.append)
    assert (summary.n_samples, summary.written, summary.linked, summary.already, summary.missing) == (6, 6, 0, 0, 0)
    assert (summary.layers, summary.finals) == ((3, 5, 6), ("final", "final_prenorm"))
    assert seen[-1].n_done == 6 and seen[-1].bytes_written == summary.n_bytes
    for sample in StoreReader(store):
        found = load_file(tmp_path / f"out/samples/{sample.index:08d}.safetensors")
        expected = sample.load("numpy")
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert found[name].dtype == tensor.dtype and np.array_equal(found[name], tensor), name
    assert summary.n_bytes == sum(map(len, files(tmp_path / "out").values()))


def test_the_same_bytes_are_linked(make_store: Any, tmp_path: Path) -> None:
    store = make_store(stages=((3, 5),), final="post-norm")
    summary = export_store(ExportJob(store, "safetensors", tmp_path / "out"))
    assert (summary.written, summary.linked) == (0, 6)
    one = (store / "samples/00000002.pp0.safetensors").stat()
    assert (tmp_path / "out/samples/00000002.safetensors").stat().st_ino == one.st_ino
    fewer = export_store(ExportJob(store, "safetensors", tmp_path / "fewer", layers=(5,)))
    assert (fewer.written, fewer.linked, fewer.layers) == (6, 0, (5,))
    assert "hidden.3" not in load_file(tmp_path / "fewer/samples/00000002.safetensors")


def test_layers_of_choice_in_ascending_order(make_store: Any, tmp_path: Path) -> None:
    export_store(ExportJob(make_store(), "safetensors", tmp_path / "out", layers=(6, 3)))
    found = load_file(tmp_path / "out/samples/00000001.safetensors")
    assert sorted(found) == ["final", "final_prenorm", "hidden.3", "hidden.6", "input_ids", "loss_mask"]


@pytest.mark.parametrize(
    ("kind", "final", "layers", "message", "hint"),
    [
        ("specforge", "pre-norm", (), "needs the post-norm final state, .* has the pre-norm one", "--final both"),
        ("ge_data", "pre-norm", (), "needs the post-norm final state", "--layers A,B,C --final both"),
        ("speculators", "post-norm", (), "needs the pre-norm final state", "--layers 3,5,6 --final both"),
        ("specforge", "both", (3, 5), r"holds 3 layers; 2 are chosen of store .*: 3, 5", "--layers 3,5,6"),
        ("modelopt", "both", (3,), "holds 3 layers; 1 are chosen", "auxtap export .* --format modelopt"),
        ("specforge", "both", (3, 5, 9), "has layers 3, 5, 6, not 9", r"auxtap serve .* --layers 3,5,6,9"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(
    make_store: Any, tmp_path: Path, kind: str, final: str, layers: Any, message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        export_store(ExportJob(make_store(1, final=final), kind, tmp_path / "out", layers=layers))
    assert re.search(hint, raised.value.hint or ""), raised.value.hint
    assert not (tmp_path / "out").exists()


def test_a_store_of_too_few_layers_needs_another_server(make_store: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"angelslim holds 3 layers; 2 are chosen .* 3, 5") as raised:
        export_store(ExportJob(make_store(1, stages=((3, 5),)), "angelslim", tmp_path / "out"))
    assert "auxtap serve --worktree DIR --model-path /models/tiny --layers A,B,C --final both" in str(raised.value.hint)


def test_extract_refuses_before_it_sends_what_a_trainer_cannot_hold(tap: Any, server: Any) -> None:
    with pytest.raises(UsageError, match=r"specforge holds 3 layers; 2 are chosen of the server: 3, 5") as raised:
        check_servers([ServerPlace(server.url, (tap.spool,))], "specforge")
    assert "--layers A,B,C --final post-norm" in (raised.value.hint or "")
    with pytest.raises(UsageError, match="needs the pre-norm final state, and the server has the post-norm one"):
        check_servers([ServerPlace(server.url, (tap.spool,))], "speculators")
    with pytest.raises(UsageError, match="needs a store on this machine"):
        split_format("specforge", local=False)
    assert split_format("pt", local=False) == ("pt", None)
    assert server.requests == []


@pytest.fixture
def two_spools(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "spool-1", tmp_path / "spool-2"
    for path in paths:
        path.mkdir(mode=0o700)
    return paths


@pytest.mark.parametrize("n_hosts", [1, 2])
def test_two_spools_are_replicas_or_hosts_of_one_server(two_spools: tuple[Path, Path], n_hosts: int) -> None:
    """Behind a router each spool is a whole server's; else one stage of it writes into each."""
    for number, path in enumerate(two_spools):
        only = None if n_hosts == 1 else {number}
        FakeTap(path, ((3,), (5,)), final="both", only=only, nonce=f"n{number}", host=f"host-{number}").announce()
    place = ServerPlace("http://127.0.0.1:9", two_spools)
    check_servers([place], "speculators")
    with open_replicas(two_spools) as replicas:
        assert [union.paths for union in replicas] == (
            [(each,) for each in two_spools] if n_hosts == 1 else [two_spools]
        )


def test_every_server_is_asked_what_it_gives(two_spools: tuple[Path, Path]) -> None:
    places = [ServerPlace(f"http://127.0.0.1:{9 + number}", (path,)) for number, path in enumerate(two_spools)]
    FakeTap(two_spools[0], final="both").announce()
    FakeTap(two_spools[1], final="post-norm").announce()
    check_servers(places[:1], "speculators")
    with pytest.raises(UsageError, match="needs the pre-norm final state"):
        check_servers(places, "speculators")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, make_store: Any, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="format x needs torch") as raised:
        require_torch("x")
    assert "auxtap[pt]" in (raised.value.hint or "")
    with pytest.raises(UsageError, match="speculators needs pyarrow"):
        export_store(ExportJob(make_store(1), "speculators", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    safetensors.JoinedSafetensors().check_available()


def test_a_mapping_that_no_trainer_looks_for_is_refused(make_store: Any, tmp_path: Path) -> None:
    assert speculators.Speculators().mapping_file is None and specforge.SpecForge().mapping_file is not None
    with pytest.raises(UsageError, match="has no vocabulary mapping"):
        export_store(ExportJob(make_store(1), "ge_data", tmp_path / "out", draft_vocab=4, layers=()))


def test_run_again_it_goes_on(make_store: Any, tmp_path: Path) -> None:
    store, out = make_store(3), tmp_path / "out"
    job = ExportJob(store, "safetensors", out)
    export_store(job)
    before = files(out)
    assert export_store(job).already == 3
    (out / "samples/00000001.safetensors").write_bytes(b"half")
    (out / "samples/00000002.safetensors").unlink()
    again = export_store(job)
    assert (again.already, again.written) == (1, 2) and files(out) == before
    record = tmp_path / ".out.auxtap-export/done.jsonl"
    lines = record.read_bytes().splitlines(keepends=True)
    record.write_bytes(b"".join([*lines[:3], lines[3][:-5]]))
    assert export_store(job).written == 1 and files(out) == before


def test_a_sample_that_was_extracted_anew_is_exported_anew(make_store: Any, tmp_path: Path) -> None:
    store = make_store(3)
    job = ExportJob(store, "safetensors", tmp_path / "out")
    export_store(job)
    ledger = store / "ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    changed = lines[0]
    # Another file of the same states: a key of its header is written otherwise.
    path = store / changed["parts"][0]["file"]
    path.write_bytes(path.read_bytes().replace(b'"index":"', b'"jndex":"'))
    changed["parts"][0]["digest"] = f"xxh3_128:{xxhash.xxh3_128(path.read_bytes()).hexdigest()}"
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = export_store(job)
    assert (again.already, again.written) == (2, 1)


@pytest.mark.parametrize("where", ["ids", "states", "mask", "length"])
def test_a_store_that_changed_is_never_exported(make_store: Any, tmp_path: Path, where: str) -> None:
    store = make_store(3)
    path = store / "samples/00000001.pp1.safetensors"
    data = bytearray(path.read_bytes())
    header = int.from_bytes(data[:8], "little") + 8
    if where == "length":
        del data[-1]
    else:
        data[{"ids": header, "states": header + 8 * 6 + 3, "mask": len(data) - 1}[where]] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=re.escape(str(path))):
        export_store(ExportJob(store, "safetensors", tmp_path / "out"))
    assert not (tmp_path / "out/samples/00000001.safetensors").exists()
    path.unlink()
    with pytest.raises(IntegrityError, match="No such file"):
        export_store(ExportJob(store, "safetensors", tmp_path / "out"))


def test_an_export_of_something_else_is_refused(make_store: Any, tmp_path: Path) -> None:
    store, out = make_store(2), tmp_path / "out"
    export_store(ExportJob(store, "safetensors", out))
    with pytest.raises(ExtractionError, match=r"is an export of something else: layers \[3, 5, 6\], now \[3, 5\]"):
        export_store(ExportJob(store, "safetensors", out, layers=(3, 5)))
    with pytest.raises(ExtractionError, match="something else: run "):
        export_store(ExportJob(make_store(2, name="other"), "safetensors", out))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "photo.jpg").touch()
    with pytest.raises(ExtractionError, match="is there already and is no export"):
        export_store(ExportJob(store, "safetensors", foreign))
    with pytest.raises(ExtractionError, match="is no store"):
        export_store(ExportJob(tmp_path, "safetensors", tmp_path / "new"))


@pytest.mark.slow
def test_a_killed_export_leaves_whole_files_only_and_is_gone_on_with(make_store: Any, tmp_path: Path) -> None:
    store = make_store(40)
    export_store(ExportJob(store, "safetensors", tmp_path / "whole"))
    out = tmp_path / "out"
    program = (
        "import sys, time; from pathlib import Path\n"
        "from auxtap.extraction.export import exporting as export\n"
        "from auxtap.extraction.export.formats import safetensors\n"
        "write = safetensors.JoinedSafetensors.write\n"
        "def slowly(self, file, sample):\n"
        "    write(self, file, sample); file.flush(); time.sleep(0.05)\n"
        "safetensors.JoinedSafetensors.write = slowly\n"
        f"export.export_store(export.ExportJob(Path({str(store)!r}), 'safetensors', Path({str(out)!r}), workers=3))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 60
    while len(list(out.glob("samples/*"))) < 7 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    whole, found = files(tmp_path / "whole"), files(out)
    assert 7 <= len(found) < 40
    assert all(whole[name] == data for name, data in found.items()), "a name stands on half a file"
    summary = export_store(ExportJob(store, "safetensors", out))
    assert summary.already >= len(found) - 3 and summary.already + summary.written == 40
    assert files(out) == whole
    assert os.listdir(tmp_path / ".out.auxtap-export") != [] and not (tmp_path / ".out.auxtap-export/half").exists()


def test_a_draft_vocabulary() -> None:
    counts = np.array([0, 5, 5, 1, 0, 9], dtype=np.int64)
    chosen = choose_draft_vocabulary(counts, 3)
    assert (np.arange(3) + chosen.d2t).tolist() == [1, 2, 5] and chosen.t2d.nonzero()[0].tolist() == [1, 2, 5]
    assert chosen.share == 19 / 20
    assert choose_draft_vocabulary(counts, 2).t2d.nonzero()[0].tolist() == [1, 5]
    assert choose_draft_vocabulary(counts, 5).t2d.nonzero()[0].tolist() == [0, 1, 2, 3, 5]
    for n_draft, message in ((7, "not within 1 to the model's 6"), (0, "not within")):
        with pytest.raises(UsageError, match=message):
            choose_draft_vocabulary(counts, n_draft)
    with pytest.raises(UsageError, match="no token of the store is trained"):
        choose_draft_vocabulary(np.zeros(4, dtype=np.int64), 2)


def test_trained_tokens_are_counted_where_the_mask_is_set() -> None:
    place = SamplePlace(0, 0, "a", 4)
    row = TokenRow(place, np.array([3, 1, 3, 0]), np.array([1, 0, 1, 1], dtype=np.uint8))
    assert count_trained([row, row], 5).tolist() == [2, 0, 0, 4, 0]
    with pytest.raises(IntegrityError, match="outside the model's vocabulary of 3"):
        count_trained([replace(row)], 3)


@pytest.mark.slow
def test_the_command(make_store: Any, tmp_path: Path) -> None:
    store, out = make_store(4), tmp_path / "out"
    command = [sys.executable, "-m", "auxtap.cli", "export", str(store), "--format"]
    done = subprocess.run([*command, "safetensors", "--out", out, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["written"], record["format"], record["finals"]) == (4, "safetensors", ["final", "final_prenorm"])
    done = subprocess.run([*command, "safetensors", "--out", out], capture_output=True, text=True)
    assert done.returncode == 0 and re.search(r"there before\s+4", done.stdout)
    done = subprocess.run([*command, "nonsense", "--out", out], capture_output=True, text=True)
    assert done.returncode == 2 and "formats: angelslim, ge_data" in done.stderr
