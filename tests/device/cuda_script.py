"""Check the tap's copies on a CUDA device; needs torch and this repository, no SGLang and no auxtap.

usage: python tests/device/cuda_script.py [--cpu] [--gib 2] [--folder /dev/shm]

Prints a line of JSON for each check and ends with 1 when one failed. Without a device it prints
`not run: no CUDA device` and ends with 77, which counts as not run. `--cpu` runs what a CPU can, to test this script.
"""

import argparse
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

TAP = Path(__file__).resolve().parents[2] / "tap"
NOT_RUN = 77
HIDDEN, LAYERS = 7168, (3, 31, 59)
CHECKS: list[Callable[["Bench"], dict[str, Any]]] = []


def check(function: Callable[["Bench"], dict[str, Any]]) -> Callable[["Bench"], dict[str, Any]]:
    """Register a check."""
    CHECKS.append(function)
    return function


class Bench:
    """The tap's modules, the device, and a folder for spools."""

    def __init__(self, device: str, folder: Path, gib: float) -> None:
        self.device, self.folder, self.gib = torch.device(device), folder, gib
        package = folder / "modules" / "tapped"
        shutil.copytree(TAP, package, ignore=shutil.ignore_patterns("__pycache__"))
        sys.path.insert(0, str(package.parent))
        self.capture = importlib.import_module("tapped.capture")
        self.protocol = importlib.import_module("tapped.protocol")
        self.rows = importlib.import_module("tapped.rows")
        self.spool = importlib.import_module("tapped.spool")
        self.writer = importlib.import_module("tapped.writer")

    @property
    def cuda(self) -> bool:
        """Whether the device is a GPU."""
        return bool(self.device.type == "cuda")

    def states(self, n_rows: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
        """Return random states of all layers and the final one, [rows, hidden]."""
        return [torch.randn(n_rows, HIDDEN, device=self.device).to(dtype) for _ in range(len(LAYERS) + 1)]

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    @contextmanager
    def tapping(self, name: str, dtype: str, limit: int) -> Iterator[tuple[Any, Any]]:
        """Give a capture that writes into a spool of its own, and its budget; its writer has ended afterwards."""
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        budget = self.writer.PendingBudget(limit)
        descriptor = self.protocol.descriptor_name("host", 0, 0)
        writer = self.writer.Writer(self.spool.SpoolDirectory(folder), descriptor, "nonce", budget)
        writer.start()
        stage = self.capture.Stage(0, 0, LAYERS, True, HIDDEN, dtype)
        try:
            yield self.capture.Capture(stage, writer, 60.0), budget
        finally:
            writer.stop()

    def batch(self, tap: Any, number: int, n_rows: int) -> Any:
        """Return a ForwardBatch with one whole prompt of ours."""
        noted = (self.rows.NotedRequest(self.protocol.RequestId("0" * 8, number, 1), n_rows),)
        tap.expect(noted, prefill=True)
        return SimpleNamespace(
            forward_mode=SimpleNamespace(name="EXTEND"),
            extend_seq_lens_cpu=[n_rows],
            extend_prefix_lens_cpu=[0],
            input_ids=torch.arange(n_rows, device=self.device),
            _auxtap=noted,
        )

    def stored(self, name: str, number: int) -> dict[str, torch.Tensor]:
        """Read a part back."""
        from safetensors.torch import load_file

        return dict(load_file(self.folder / name / f"aux1-{'0' * 8}-{number}-1.pp0.dp0.ready"))


def same_bits(data: memoryview, tensor: torch.Tensor) -> bool:
    """Tell whether copied bytes are those of a tensor."""
    return bool(bytes(data) == tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


@check
def every_dtype_keeps_its_bits(bench: Bench) -> dict[str, Any]:
    """bf16, fp16, fp32, and the int64 of token ids."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        tensor = torch.randn(257, HIDDEN, device=bench.device).to(dtype)
        assert same_bits(bench.capture.copy_to_host(tensor)(), tensor), dtype
    ids = torch.arange(1 << 16, device=bench.device)
    assert same_bits(bench.capture.copy_to_host(ids)(), ids)
    return {}


@check
def a_view_of_a_wider_tensor_is_copied_dense(bench: Bench) -> dict[str, Any]:
    """Rows of one state within a packed [rows, layers * hidden]."""
    packed = torch.randn(64, 3 * HIDDEN, device=bench.device).bfloat16()
    view = packed[5:40, HIDDEN : 2 * HIDDEN]
    assert same_bits(bench.capture.copy_to_host(view)(), view)
    return {}


def overwritten(bench: Bench, stream: Any) -> dict[str, Any]:
    """Copy what a busy stream is about to overwrite; return how far the copy lagged behind the call."""
    with torch.cuda.stream(stream) if stream is not None else nullcontext():
        tensor = torch.randn(8192, HIDDEN, device=bench.device).bfloat16()
        kept = tensor.clone()
        busy = torch.randn(4096, 4096, device=bench.device)
        for _ in range(20 if bench.cuda else 1):
            busy = busy @ busy * 1e-3
        began = time.monotonic()
        wait = bench.capture.copy_to_host(tensor)
        called_s = time.monotonic() - began
        tensor.fill_(float("nan"))
    data = wait()
    waited_s = time.monotonic() - began
    bench.synchronize()
    assert same_bits(data, kept), "the copy holds what was written after the capture"
    return {"call_ms": round(called_s * 1e3, 2), "wait_ms": round(waited_s * 1e3, 2)}


@check
def a_tensor_overwritten_right_after_the_capture(bench: Bench) -> dict[str, Any]:
    """On the default stream: the copy is queued before what overwrites it."""
    return overwritten(bench, None)


@check
def a_copy_on_a_side_stream(bench: Bench) -> dict[str, Any]:
    """As the overlap scheduler runs forwards: on a stream that is not the default one."""
    return overwritten(bench, torch.cuda.Stream(bench.device) if bench.cuda else None)


@check
def the_wait_in_another_thread_is_for_the_right_device(bench: Bench) -> dict[str, Any]:
    """The writer's thread has made no context of its own."""
    import threading

    tensor = torch.randn(1024, HIDDEN, device=bench.device).bfloat16()
    wait = bench.capture.copy_to_host(tensor)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(same_bits(wait(), tensor)))
    thread.start()
    thread.join(60)
    assert found == [True]
    return {}


@check
def pinned_memory_stays_within_its_budget(bench: Bench) -> dict[str, Any]:
    """A prompt of several times the budget passes, and never more than the budget is pending."""
    n_rows, limit = 2048, 32 << 20
    states = bench.states(n_rows)
    with bench.tapping("budget", "BF16", limit) as (tap, budget):
        tap.take(bench.batch(tap, 0, n_rows), states[:-1], states[-1])
        for state in states:
            state.zero_()
    parts = bench.stored("budget", 0)
    assert set(parts) == {"input_ids", "final", *(f"hidden.{layer}" for layer in LAYERS)}
    assert parts["input_ids"].tolist() == list(range(n_rows))
    assert all(bool(parts[name].any()) for name in parts), "what was written is what came after the capture"
    assert 0 < budget.peak <= limit, budget.peak
    return {"limit_mib": limit >> 20, "peak_mib": budget.peak >> 20, "prompt_mib": 4 * n_rows * HIDDEN * 2 >> 20}


@check
def copy_and_write_against_the_copy_alone(bench: Bench) -> dict[str, Any]:
    """GB/s of the whole tap and of bare copies to pinned memory, the same bytes."""
    n_rows = 2048
    states = bench.states(n_rows)
    n_bytes = sum(state.numel() * state.element_size() for state in states)
    rounds = max(1, int(bench.gib * (1 << 30) / n_bytes))
    host = [torch.empty(state.shape, dtype=state.dtype, pin_memory=bench.cuda) for state in states]
    bench.synchronize()
    began = time.monotonic()
    for _ in range(rounds):
        for state, target in zip(states, host, strict=True):
            target.copy_(state, non_blocking=True)
    bench.synchronize()
    copy_s = time.monotonic() - began
    began = time.monotonic()
    with bench.tapping("speed", "BF16", 2 << 30) as (tap, _):
        for number in range(rounds):
            tap.take(bench.batch(tap, number, n_rows), states[:-1], states[-1])
        handed_s = time.monotonic() - began
    whole_s = time.monotonic() - began
    total = rounds * n_bytes / 1e9
    assert len(list((bench.folder / "speed").glob("*.ready"))) == rounds
    return {
        "gb": round(total, 2),
        "copy_gb_s": round(total / copy_s, 2),
        "copy_and_write_gb_s": round(total / whole_s, 2),
        "forward_held_gb_s": round(total / handed_s, 2),
        "ratio": round(copy_s / whole_s, 3),
    }


def main() -> int:
    """Run every check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="run what a CPU can, to test this script")
    parser.add_argument("--gib", type=float, default=2.0, help="bytes to move for the speed, in GiB")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where spools go")
    arguments = parser.parse_args()
    if not arguments.cpu and not torch.cuda.is_available():
        print("not run: no CUDA device")
        return NOT_RUN
    failed = 0
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="auxtap-device-") as folder:
        bench = Bench("cpu" if arguments.cpu else "cuda", Path(folder), arguments.gib)
        name = "cpu" if arguments.cpu else torch.cuda.get_device_name()
        print(json.dumps({"device": name, "torch": torch.__version__, "pid": os.getpid()}), flush=True)
        for function in CHECKS:
            record: dict[str, Any] = {"check": function.__name__}
            try:
                record.update(ok=True, **function(bench))
            except Exception:
                failed += 1
                record.update(ok=False, why=traceback.format_exc()[-1500:])
            print(json.dumps(record), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
