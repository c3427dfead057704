"""`--format pt`: in this environment where torch is installed, else refused with the extra to install."""

import importlib.util
import os
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import auxtap
from auxtap.core.errors import UsageError
from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.run.driver import ExtractionJob, run_extraction

Maker = Callable[..., ExtractionJob]
HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_without_torch_it_names_the_extra(make_job: Maker, server: Any) -> None:
    with pytest.raises(UsageError, match="format pt needs torch") as raised:
        run_extraction(make_job(1, part_format="pt"))
    assert "auxtap[pt]" in (raised.value.hint or "") and not server.requests


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed here")
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_torch_files_hold_the_same(make_job: Maker, tap: Any, state_rows: Any, dtype: str) -> None:
    import torch

    tap.stages, tap.dtype = ((3,), (5,)), dtype
    tap.announce()
    job = make_job(4, part_format="pt")
    assert run_extraction(job).complete
    assert check_store(job.store).findings == ()
    for sample in job.dataset.samples:
        tensors = torch.load(job.store / f"samples/{sample.index:08d}.pp1.pt", weights_only=True)
        assert list(tensors) == ["input_ids", "hidden.5", "final", "loss_mask"]
        assert tensors["input_ids"].tolist() == sample.token_ids()
        assert bytes(tensors["loss_mask"].tolist()) == sample.loss_mask
        states = tensors["hidden.5"].view(torch.uint8).numpy().tobytes()
        assert states == state_rows("hidden.5", sample.token_ids(), dtype)
    assert run_extraction(job).already_stored == 4
    path = job.store / "samples/00000002.pp0.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert {str(finding.file) for finding in check_store(job.store).findings} == {"samples/00000002.pp0.pt"}


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed here")
def test_a_pickle_is_never_executed(make_job: Maker) -> None:
    import pickle

    class Planted:
        def __reduce__(self) -> Any:
            return os.mkdir, ("executed",)

    job = make_job(1, part_format="pt", store=make_job(1).store.with_name("pt"))
    run_extraction(job)
    (job.store / "samples/00000000.pp0.pt").write_bytes(pickle.dumps(Planted()))
    assert any("is no torch file" in finding.what for finding in check_store(job.store).findings)
    assert not os.path.exists("executed")


@pytest.mark.engine
@pytest.mark.skipif(HAS_TORCH, reason="torch is installed, so the tests above have run")
def test_the_same_beside_the_engines_torch(engine: Any, tmp_path: Path) -> None:
    (tmp_path / "auxtap").symlink_to(Path(auxtap.__file__).parent)
    paths = [str(tmp_path), sysconfig.get_paths()["purelib"]]
    result = subprocess.run(
        [engine.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 passed" in result.stdout
