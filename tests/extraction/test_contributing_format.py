"""The format that CONTRIBUTING.md shows is a whole one: found by name in its folder, shown, and good for an export."""

import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auxtap.extraction.export import formats
from auxtap.extraction.export import trainer_formats as registry
from auxtap.extraction.export.exporting import ExportJob, export_store
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.extraction.store.reader import StoreReader

NAME = "npz_final"
TEXT = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text()


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the shown file into a folder of its own that counts as the formats' folder."""
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if "class NpzFinal" in block)
    folder = tmp_path / "formats"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / f"{NAME}.py").write_text(block)
    monkeypatch.setattr(formats, "__path__", [str(folder)])
    monkeypatch.setattr(registry, "files", lambda package: folder)
    registry.format_names.cache_clear()
    yield
    monkeypatch.undo()
    registry.format_names.cache_clear()


@pytest.mark.usefixtures("added")
def test_it_is_found_shown_and_exports(
    make_job: Callable[..., ExtractionJob], tap: Any, server: Any, tmp_path: Path
) -> None:
    assert registry.format_names() == (NAME,)
    module = importlib.import_module(f"{formats.__name__}.{NAME}")
    assert registry.trainer_formats() == (module.FORMAT,)
    tap.stages, tap.dtype = ((3,),), "F32"
    tap.announce()
    job = make_job(4)
    assert run_extraction(job).complete
    assert export_store(ExportJob(job.store, NAME, tmp_path / "out")).written == 4
    for sample in StoreReader(job.store):
        found, stored = np.load(tmp_path / f"out/{sample.index:08d}.npz"), sample.load("numpy")
        assert found["final"].dtype == np.float32 and np.array_equal(found["final"], stored["final"])
        assert np.array_equal(found["input_ids"], stored["input_ids"])
