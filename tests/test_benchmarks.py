"""The benchmarks go the way that extraction goes: a change of one must not break the other unseen."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from safetensors import safe_open

SINK = Path(__file__).parent.parent / "examples/benchmarks/sink.py"


@pytest.fixture
def sink_benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("sink_benchmark", SINK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "N_TOKENS", 7)
    yield module


@pytest.mark.parametrize("finite", [True, False])
def test_the_sink_benchmark_brings_a_sample_into_a_store(
    finite: bool, sink_benchmark: ModuleType, tmp_path: Path
) -> None:
    sink = sink_benchmark.Sink(tmp_path / "spool")
    try:
        stored = sink_benchmark.drain_store(sink, tmp_path / "store")(sink.write(finite=finite))
    finally:
        sink.writer.stop()
    with safe_open(stored, "np") as file:
        ids = file.get_tensor("input_ids")
        assert ids.tobytes() == bytes(sink.tensors["input_ids"]) and len(ids) == 7
        assert {"hidden.3", "final"} <= set(file.keys())
