"""Extract many short samples through a real CPU server, and compare the CPU a token with that of the JSON way.

Run: python examples/benchmarks/extraction.py [--samples N]
Memory and open files of extractor and server are taken every second; they must not grow with the samples. The JSON
way is a real server of 1,024 values a token that is asked for its states over HTTP, and not: the difference in the
CPU time of its processes, and what the client takes to receive and decode, a value. Beside it stands the least that
lists and JSON can cost, by themselves. Ours is all that we do up to the finished store, checks and all, and the part
of it from tap to reader, which is what the JSON replaces. Writing fresh memory is the greater part of ours, so it is
measured with a spool of small and of huge pages; the budget holds for the whole way in both.
"""

import argparse
import contextlib
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from auxtap.checkout.source import open_source
from auxtap.checkout.worktree import apply_patch, revert
from auxtap.commands.context import cache_layout
from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.datasets.reading import read_dataset
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.rewriters.patch.diff import write_patch
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.serving.engine_env import set_up_engine
from auxtap.serving.processes import choose_port
from auxtap.serving.profile import LOOPBACK, LaunchSpec
from auxtap.serving.server import ServerProcess
from auxtap.verification.engine.engine_proof import launch_template
from auxtap.verification.engine.fork_server import ForkServer
from auxtap.verification.engine.tiny_models import make_tiny_models

RELEASE = "0.5.9"
JSON_RATIO, GROWTH_MB, GROWTH_FILES = 200.0, 64.0, 16
N_VALUES = 4 * 7168  # a token's: three layers and the final state
N_WIDE = 1024
# The least of it: lists, pickled from scheduler to detokenizer and on to the tokenizer manager (BatchTokenIDOutput,
# BatchStrOutput), then JSON by orjson both ways; the client makes an array.
JSON_SCRIPT = """
import json, os, pickle, sys, time
import numpy as np
try:
    import orjson
    encode, decode, name = orjson.dumps, orjson.loads, "orjson"
except ImportError:
    encode, decode, name = (lambda value: json.dumps(value).encode()), json.loads, "json"
values = np.random.default_rng(1).standard_normal((4, 64, 7168), dtype=np.float32)
times = []
for _ in range(3):
    began = time.process_time()
    lists = values.tolist()
    for _ in range(2):
        lists = pickle.loads(pickle.dumps(lists))
    received = np.array(decode(encode({"hidden_states": lists}))["hidden_states"], dtype=np.float32)
    with open(os.devnull, "wb") as file:
        file.write(received)
    times.append(time.process_time() - began)
print(name, min(times) / 64)
"""


@dataclass(frozen=True)
class Look:
    """Memory and open files at a moment."""

    at: float
    stored: int
    extractor_mb: float
    server_mb: float
    extractor_files: int
    server_files: int


class Watch:
    """Looks at the processes once a second."""

    def __init__(self, server_pid: int) -> None:
        self.looks: list[Look] = []
        self.stored = 0
        self._own = psutil.Process()
        server = psutil.Process(server_pid)
        self._server = [server, *server.children(recursive=True)]
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *ignored: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(1.0):
            with contextlib.suppress(psutil.Error):
                self.looks.append(
                    Look(
                        time.monotonic() - self._began,
                        self.stored,
                        self._own.memory_info().rss / 1e6,
                        sum(process.memory_info().rss for process in self._server) / 1e6,
                        self._own.num_fds(),
                        sum(process.num_fds() for process in self._server),
                    )
                )


@contextlib.contextmanager
def tiny_server(work: Path) -> Iterator[tuple[LaunchSpec, int]]:
    """Serve the tiny Llama with the patch; yield its spec and pid."""
    cache = cache_layout()
    engine = set_up_engine(RELEASE, cache)
    source = open_source(f"pypi:{RELEASE}", cache)
    patch_set = write_patch(source.tree, plan_capture(source.tree, ("llama",), (3, 31, 59)))
    applied = apply_patch(source, patch_set, work / "tree")
    try:
        (model,) = make_tiny_models(["llama"], engine, cache)
        template = replace(launch_template(applied, engine, cache, work / "spool"), log=work / "import.log")
        with ForkServer(template) as forks:
            spec = replace(template, model_path=str(model.path), port=choose_port(LOOPBACK, 0), log=work / "server.log")
            with forks.serve(spec) as server:
                server.wait_ready(timeout_s=300)
                yield spec, server.pid
    finally:
        revert(applied.path, force=True)


def extract_many(n_samples: int) -> bool:
    """Extract short samples and print what it took; tell whether all went as it must."""
    with tempfile.TemporaryDirectory(prefix="auxtap-extraction-") as folder:
        work = Path(folder)
        dice = random.Random(1)  # noqa: S311
        with (work / "data.jsonl").open("w") as file:
            for index in range(n_samples):
                ids = [dice.randint(32, 126) for _ in range(dice.randint(4, 24))]
                file.write(json.dumps({"id": f"short-{index}", "input_ids": ids}) + "\n")
        dataset = read_dataset(work / "data.jsonl")
        with tiny_server(work) as (spec, pid):
            assert spec.spool is not None
            job = ExtractionJob(dataset, spec.url, spec.spool, work / "store", concurrency=32)
            with Watch(pid) as watch:
                summary = run_extraction(job, lambda progress: setattr(watch, "stored", progress.stored))
        report = check_store(work / "store")
        settled = [look for look in watch.looks if look.stored > n_samples // 10] or watch.looks
        first, last = settled[0], settled[-1]
        _say(
            f"{n_samples:,} samples, {dataset.n_tokens:,} tokens: {summary.stored:,} stored, {summary.failed} failed, "
            f"{len(report.findings)} findings, {summary.seconds:.0f} s, {n_samples / summary.seconds:.0f} samples/s"
        )
        for name, look in (("at a tenth", first), ("at the end", last)):
            _say(
                f"  {name}: extractor {look.extractor_mb:.0f} MB and {look.extractor_files} files, "
                f"server {look.server_mb:.0f} MB and {look.server_files} files"
            )
        flat = (
            last.extractor_mb - first.extractor_mb <= GROWTH_MB
            and last.extractor_files - first.extractor_files <= GROWTH_FILES
            and last.server_files - first.server_files <= GROWTH_FILES
        )
        return summary.complete and summary.stored == n_samples and not report.findings and flat


@dataclass(frozen=True)
class Way:
    """CPU seconds a token of our way: into the spool with its digest, read by whoever wants it, or drained."""

    write: float
    read: float
    drain: float


def json_of_server() -> float:
    """Return the CPU seconds that a value takes from a real server over HTTP to an array."""
    from prefill import N_PROMPT, Subject, prepared  # type: ignore[import-not-found]

    with prepared(cache_layout()) as ground:
        (_, spec), *_ = ground.specs
        spec = replace(
            spec,
            port=choose_port(LOOPBACK, 0),
            extra_arguments=(*spec.extra_arguments, "--enable-return-hidden-states"),
        )
        with ServerProcess(spec) as server:
            server.wait_ready(timeout_s=600)
            subject = Subject("json", spec, server)
            costs = [subject.ask_for_states() - subject.ask(N_PROMPT, 0).cpu for _ in range(4)]
    return float(statistics.median(costs[1:]) / (N_PROMPT * N_WIDE))


def compare_with_json() -> bool:
    """Print the CPU a token of both ways; tell whether ours is cheap enough."""
    python = set_up_engine(RELEASE, cache_layout()).python
    answer = subprocess.run([str(python), "-c", JSON_SCRIPT], capture_output=True, text=True, check=True).stdout.split()
    least, theirs = float(answer[1]), json_of_server() * N_VALUES
    _say(f"CPU a token ({N_VALUES:,} values) as JSON: {theirs * 1e3:.1f} ms from a real server over HTTP")
    _say(f"  of this, lists, pickle and {answer[0]} by themselves take {least * 1e3:.1f} ms")
    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())  # noqa: S108
    cheap = True
    with contextlib.ExitStack() as stack:
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="auxtap-store-")))
        plain = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="auxtap-json-", dir=memory)))
        spools = [("spool in /dev/shm as it is mounted here", plain)]
        huge = stack.enter_context(huge_pages())
        if huge is not None:
            spools.append(("spool in a tmpfs with huge pages", huge))
        else:
            _say("  no tmpfs with huge pages can be mounted here: that takes root")
        for number, (name, place) in enumerate(spools):
            way = time_way(place / "spool", disk / f"store-{number}")
            carried, stored = way.write + way.read, way.write + way.drain
            _say(f"  {name}, the store on disk:")
            for way_name, took, budget in (
                ("tap to spool with its digest, read", carried, ""),
                ("tap to store, checked, digested again, synced", stored, f" (budget 1/{JSON_RATIO:.0f})"),
            ):
                ratios = f"1/{theirs / took:.0f}{budget}, of the least 1/{least / took:.0f}"
                _say(f"    {way_name}: {took * 1e6:.0f} us, {ratios}")
            cheap &= theirs / stored >= JSON_RATIO
    return cheap


def time_way(spool: Path, store: Path) -> Way:
    """Take one large sample through the tap's writer and into a store, again and again; the least of each counts."""
    from sink import N_TOKENS, Sink, drain_store  # type: ignore[import-not-found]

    sink = Sink(spool)
    drain = drain_store(sink, store)
    buffer = bytearray(4 << 20)
    times: list[tuple[float, ...]] = []
    for _ in range(8):
        marks = [time.process_time()]
        path = sink.write()
        marks.append(time.process_time())
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
        marks.append(time.process_time())
        stored = drain(path)
        marks.append(time.process_time())
        stored.unlink()
        path.unlink()
        times.append(tuple((end - begin) / N_TOKENS for begin, end in itertools.pairwise(marks)))
    sink.writer.stop()
    return Way(*(min(each) for each in zip(*times[1:], strict=True)))


@contextlib.contextmanager
def huge_pages() -> Iterator[Path | None]:
    """Mount a tmpfs whose files are made of huge pages, None where we may not."""
    with tempfile.TemporaryDirectory(prefix="auxtap-huge-") as folder:
        options = "size=1g,huge=within_size,mode=0700"
        mount = ["mount", "-t", "tmpfs", "-o", options, "auxtap-bench", folder]
        if subprocess.run(mount, capture_output=True).returncode != 0:
            yield None
            return
        try:
            yield Path(folder)
        finally:
            # Lazily: the tap holds its spool open for as long as it lives.
            subprocess.run(["umount", "--lazy", folder], check=True)


def main() -> int:
    """Run both parts; fail when one is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000, help="0 compares with JSON only")
    arguments = parser.parse_args()
    cheap = compare_with_json()
    return int(not ((arguments.samples == 0 or extract_many(arguments.samples)) and cheap))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
