"""Time the way of one large sample into spool and store, as ratios to a raw write of its bytes in the same round.

Run: python examples/benchmarks/sink.py [--rounds N] [--place DIR ...]
One sample is 1,730 tokens x 4 states x 7,168 bfloat16 = 99 MB, as a Kimi-K2.5 server gives it. A ratio is the time of
the raw write over that of the row, so 1.0 is as fast as writing alone; the median of all rounds counts.
"""

import argparse
import contextlib
import os
import queue
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from auxtap.core.files import BLOCK_BYTES
from auxtap.extraction.spool.finite import is_finite
from auxtap.tap import protocol
from auxtap.tap.protocol import PartName, RequestId
from auxtap.tap.spool import SpoolDirectory
from auxtap.tap.writer import Begin, Block, End, PendingBudget, Writer

N_TOKENS, HIDDEN, LAYERS = 1730, 7168, (3, 31, 59)
BUDGETS = {"tap, no checksum": 0.90, "tap, xxh3_128": 0.65, "tap, xxh3_128 and finite check": 0.45}
# What tap and extractor may hold besides one sample.
SLACK_BYTES = 10_000_000


class NoDigest:
    """Takes the place of a digest where the cost of the rest is wanted."""

    def update(self, data: Any) -> None:
        """Take nothing."""

    def hexdigest(self) -> str:
        """Return what a header has room for."""
        return "0" * 32


class Sink:
    """A tap's writer with a sample to write over and over."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self.folder = folder
        self.writer = Writer(SpoolDirectory(folder), "rank-bench-0-0.json", "0" * 16, PendingBudget(2 << 30))
        self.writer.start()
        self.layout = protocol.part_layout(
            n_tokens=N_TOKENS, layers=LAYERS, has_final=True, hidden_size=HIDDEN, dtype="BF16"
        )
        dice = np.random.default_rng(1)
        self.tensors = {slot.name: _tensor(dice, slot.dtype, slot.n_bytes) for slot in self.layout.slots}
        self._sealed: queue.SimpleQueue[str] = queue.SimpleQueue()
        rename = self.writer._spool.rename

        def notice(old: str, new: str) -> None:
            rename(old, new)
            if new.endswith(protocol.READY):
                self._sealed.put(new)

        self.writer._spool.rename = notice  # type: ignore[method-assign]
        self._attempt = 0

    @property
    def n_bytes(self) -> int:
        """Bytes of the sample."""
        return self.layout.data_bytes

    def write(self, *, finite: bool = False) -> Path:
        """Write the sample through the tap's thread and wait until it is ready."""
        self._attempt += 1
        name = PartName(RequestId("0" * 8, 0, self._attempt), 0, 0, protocol.WRITING)
        self.writer.submit(Begin(name, self.layout, 0))
        for slot in self.layout.slots:
            data = self.tensors[slot.name]
            assert self.writer.budget.acquire(slot.n_bytes, 10.0)
            read = _checked(data, slot.dtype) if finite and slot.dtype != "I64" else _plain(data)
            self.writer.submit(Block(name, slot.name, 0, slot.n_bytes, read))
        self.writer.submit(End(name, 0, N_TOKENS))
        return self.folder / self._sealed.get(timeout=60)

    def raw(self) -> Path:
        """Write the same bytes with one call a tensor and rename them."""
        path = self.folder / "raw"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for data in self.tensors.values():
            view = data
            while view:
                view = view[os.write(handle, view) :]
        os.close(handle)
        return path.rename(self.folder / "raw.ready")


def _tensor(dice: np.random.Generator, dtype: str, n_bytes: int) -> memoryview:
    """Return token ids, or finite bfloat16 values."""
    if dtype == "I64":
        return dice.integers(0, 160_000, n_bytes // 8, dtype=np.int64).data.cast("B")
    return dice.integers(0, 0x7F80, n_bytes // 2, dtype=np.uint16).data.cast("B")


def _plain(data: memoryview) -> Callable[[], memoryview]:
    return lambda: data


def _checked(data: memoryview, dtype: str) -> Callable[[], memoryview]:
    def read() -> memoryview:
        assert all(is_finite(data[i : i + BLOCK_BYTES], dtype) for i in range(0, len(data), BLOCK_BYTES))
        return data

    return read


@contextlib.contextmanager
def without_digest() -> Iterator[None]:
    """Have parts sealed without a digest."""
    original = protocol.new_digest
    protocol.new_digest = lambda algorithm: NoDigest()
    try:
        yield
    finally:
        protocol.new_digest = original


def drain_store(sink: Sink, root: Path) -> Callable[[Path], Path]:
    """Return what brings a ready part into a store at `root`: read, both digests, finite check, written and synced."""
    from auxtap.extraction.datasets.reading import keep_samples
    from auxtap.extraction.spool.directory import SpoolDirectory as Reading
    from auxtap.extraction.spool.directory import SpoolUnion
    from auxtap.extraction.spool.parts import ReadyPart, Replica
    from auxtap.extraction.store.ledger import LedgerWriter
    from auxtap.extraction.store.store import PartSource, Store
    from auxtap.extraction.store.store_manifest import DatasetFacts, ModelFacts, StageStates, StoreManifest

    (root / "samples").mkdir(parents=True)
    states = tuple(slot.name for slot in sink.layout.slots[1:])
    manifest = StoreManifest(
        "0" * 8, 1, "", "safetensors", ModelFacts("", "", 61, HIDDEN, 1, 1), "", "", "", "BF16", "post-norm",
        LAYERS, 1, (StageStates(0, states),), DatasetFacts("", 1, 1), {},
    )  # fmt: skip
    store = Store(root, manifest, LedgerWriter(root / "ledger.jsonl", 0), {})
    spool = SpoolUnion([Reading(sink.folder)])
    (sample,) = keep_samples([("s", bytes(sink.tensors["input_ids"]), b"\x01" * N_TOKENS)])

    def drain(path: Path) -> Path:
        with path.open("rb") as file:
            prefix = file.read(8)
            header = protocol.decode_header(prefix + file.read(protocol.header_length(prefix) - 8))
        name = protocol.parse_part_name(path.name)
        assert name is not None
        replica = Replica(spool, None)  # type: ignore[arg-type]
        part = ReadyPart(name, header, header.metadata["digest"], replica)
        source = PartSource(0, 0, sink.layout, part.digest, part.blocks(sample.ids))
        return store.write_part(sample, source).temporary

    return drain


def timed(action: Callable[[], Path]) -> tuple[float, Path]:
    """Return the seconds that an action takes and what it made."""
    began = time.perf_counter()
    path = action()
    return time.perf_counter() - began, path


def reset_peak() -> int:
    """Forget the peak of this process's memory and return what it holds now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def peak_bytes() -> int:
    """Return the most memory that this process has held since the peak was forgotten."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


def measure(place: Path, rounds: int) -> tuple[dict[str, list[float]], int]:
    """Return the seconds of every row in every round, and the memory that was needed beside the sample itself."""
    folder = Path(tempfile.mkdtemp(prefix="auxtap-sink-", dir=place))
    try:
        sink = Sink(folder / "spool")
        drain = drain_store(sink, folder / "store")
        seconds: dict[str, list[float]] = {}
        held = reset_peak()
        for number in range(rounds + 1):
            for row, took in _round(sink, drain):
                if number:  # the first one warms up
                    seconds.setdefault(row, []).append(took)
        sink.writer.stop()
        return seconds, peak_bytes() - held
    finally:
        shutil.rmtree(folder)


def _round(sink: Sink, drain: Callable[[Path], Path]) -> Iterator[tuple[str, float]]:
    took, path = timed(sink.raw)
    path.unlink()
    yield "raw write", took
    with without_digest():
        took, path = timed(sink.write)
    path.unlink()
    yield "tap, no checksum", took
    took, path = timed(lambda: sink.write(finite=True))
    path.unlink()
    yield "tap, xxh3_128 and finite check", took
    took, path = timed(sink.write)
    yield "tap, xxh3_128", took
    drained, stored = timed(lambda: drain(path))
    path.unlink()
    stored.unlink()
    yield "drain: read, 2 x xxh3_128, finite check, write, fsync", drained


def main() -> int:
    """Measure every place and print ratios; fail when one is below its budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--place", type=Path, action="append")
    arguments = parser.parse_args()
    below = False
    for place in arguments.place or [Path("/dev/shm"), Path(tempfile.gettempdir())]:  # noqa: S108
        seconds, extra = measure(place, arguments.rounds)
        raw = seconds["raw write"]
        _say(f"{place}: raw write {statistics.median(raw) * 1e3:.0f} ms a sample of 99 MB")
        for row, times in seconds.items():
            ratio = statistics.median(one / other for one, other in zip(raw, times, strict=True))
            budget = BUDGETS.get(row)
            below |= budget is not None and ratio < budget
            _say(f"  {row:55} {ratio:5.2f}" + (f"  (budget {budget:.2f})" if budget is not None else ""))
        below |= extra > SLACK_BYTES
        _say(f"  memory beside the sample itself {extra / 1e6:.1f} MB (budget {SLACK_BYTES / 1e6:.0f} MB)")
    return int(below)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
