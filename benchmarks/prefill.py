"""Time prefill and decode of a real CPU server: unpatched, patched with the tap off, patched with the tap on.

Run: python benchmarks/prefill.py [--rounds N]
A Llama of hidden size 1024 and 4 blocks, float32, prompts of 1,024 tokens, one after the other; all three servers run,
sleeping while idle, and take turns within each round. With the tap on, the time ends when the part is ready. Ratios
are to the unpatched server in the same round, by wall clock and by the CPU time of the server's processes; the median
of all rounds counts. A machine that others load says nothing by wall clock: there the CPU time is judged.
"""

import argparse
import contextlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import psutil

from auxtap.checkout.source import open_source
from auxtap.checkout.worktree import apply_patch, revert
from auxtap.commands.context import cache_layout
from auxtap.core.cache import CacheLayout
from auxtap.rewriters.diff import write_patch
from auxtap.rewriters.plan import plan_capture
from auxtap.serving.engine_env import set_up_engine
from auxtap.serving.processes import choose_port
from auxtap.serving.profile import LOOPBACK, LaunchSpec
from auxtap.serving.server import ServerProcess
from auxtap.verification.engine_scripts import engine_script, run_engine_script

RELEASE, LAYERS = "0.5.9", (1, 2, 3)
N_PROMPT, N_DECODE = 1024, 48
UNPATCHED, OFF, ON = "unpatched", "tap off", "tap on"
BUDGETS = {("prefill", OFF): 0.99, ("prefill", ON): 0.95}


@dataclass(frozen=True)
class Took:
    """Seconds of one request, by wall clock and by CPU time of the server."""

    wall: float
    cpu: float


class Subject:
    """One running server."""

    def __init__(self, name: str, spec: LaunchSpec, server: ServerProcess) -> None:
        self.name = name
        self._spec = spec
        self._processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        self._http = httpx.Client(trust_env=False, timeout=120)
        self._count = 0

    def ask(self, n_prompt: int, n_new: int) -> Took:
        """Send one prompt, and wait for its part where there is one."""
        self._count += 1
        rid = f"aux1-00000000-{self._count}-1"
        dice = random.Random(self._count)  # noqa: S311
        ids = [dice.randint(32, 126) for _ in range(n_prompt)]
        sampling = {"max_new_tokens": n_new, "temperature": 0, "ignore_eos": True}
        cpu, began = self._cpu_s(), time.perf_counter()
        answer = self._http.post(
            f"{self._spec.url}/generate", json={"input_ids": ids, "rid": rid, "sampling_params": sampling}
        )
        answer.raise_for_status()
        if self._spec.spool is not None:
            ready = self._spec.spool / f"{rid}.pp0.dp0.ready"
            while not ready.exists():
                time.sleep(0.0005)
            wall = time.perf_counter() - began
            ready.unlink()
        else:
            wall = time.perf_counter() - began
        return Took(wall, self._cpu_s() - cpu)

    def _cpu_s(self) -> float:
        total = 0.0
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total


@contextlib.contextmanager
def subjects(cache: CacheLayout) -> Iterator[list[Subject]]:
    """Start the three servers."""
    engine = set_up_engine(RELEASE, cache)
    source = open_source(f"pypi:{RELEASE}", cache)
    patch_set = write_patch(source.tree, plan_capture(source.tree, ("llama",), LAYERS))
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="auxtap-prefill-")))
        memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else work  # noqa: S108
        spool = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="auxtap-spool-", dir=memory)))
        run_engine_script(engine.python, engine_script("make_wide_model.py"), [str(work / "model")], timeout_s=300)
        plain = work / "plain"
        plain.mkdir()
        archive = work / "plain.tar"
        subprocess.run(
            ["git", "-C", str(source.repository), "archive", "--output", str(archive), source.commit], check=True
        )
        shutil.unpack_archive(archive, plain, filter="data")
        applied = apply_patch(source, patch_set, work / "patched")
        stack.callback(revert, applied.path, force=True)
        first = LaunchSpec(
            python=engine.python, tree=plain, model_path=str(work / "model"), port=0, log=work / "log", cpu=True,
            bytecode=cache.bytecode / f"sglang-{RELEASE}", release=RELEASE, layers=LAYERS,
            patch_digest=applied.patch_digest, source_digest=applied.source_digest,
            extra_arguments=("--sleep-on-idle", "--chunked-prefill-size", "-1"),
        )  # fmt: skip
        trees = ((UNPATCHED, plain, None), (OFF, applied.path, None), (ON, applied.path, spool))
        started = []
        for name, tree, own_spool in trees:
            port, log = choose_port(LOOPBACK, 0), work / f"{name.replace(' ', '-')}.log"
            spec = replace(first, tree=tree, spool=own_spool, port=port, log=log)
            server = stack.enter_context(ServerProcess(spec))
            _say(f"{name}: ready after {server.wait_ready(timeout_s=300):.0f} s")
            started.append(Subject(name, spec, server))
        yield started


def main() -> int:
    """Measure and print ratios; fail when one is below its budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    took: dict[tuple[str, str], list[Took]] = {}
    with subjects(cache_layout()) as servers:
        for number in range(arguments.rounds + 1):
            turn = number % len(servers)
            for server in [*servers[turn:], *servers[:turn]]:
                for work, n_prompt, n_new in (("prefill", N_PROMPT, 0), ("decode", 16, N_DECODE)):
                    result = server.ask(n_prompt, n_new)
                    if number:  # the first round warms up
                        took.setdefault((work, server.name), []).append(result)
    below = False
    load, cores = os.getloadavg()[1], os.cpu_count() or 1
    quiet = load <= cores + 1  # the servers themselves take one core, this process hardly any
    _say(f"load {load:.1f} on {cores} cores: judged by {'wall clock' if quiet else 'CPU time'}")
    for (work, name), results in sorted(took.items(), key=lambda item: item[0][0], reverse=True):
        reference = took[work, UNPATCHED]
        wall = statistics.median(one.wall / other.wall for one, other in zip(reference, results, strict=True))
        cpu = statistics.median(one.cpu / max(other.cpu, 1e-9) for one, other in zip(reference, results, strict=True))
        tokens = N_PROMPT if work == "prefill" else N_DECODE
        rate = tokens / statistics.median(result.wall for result in results)
        budget = BUDGETS.get((work, name))
        below |= budget is not None and (wall if quiet else cpu) < budget
        text = f"{work:8} {name:10} {rate:8.0f} tokens/s   ratio {wall:.3f} by wall clock, {cpu:.3f} by CPU time"
        _say(text + (f"  (budget {budget:.2f})" if budget is not None else ""))
    return int(below)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
