"""Time prefill and decode of a real CPU server: unpatched, patched with the tap off, patched with the tap on.

Run: python examples/benchmarks/prefill.py [--starts N] [--rounds N]
A Llama of hidden size 1024 and 4 blocks, float32, prompts of 1,024 tokens, one after the other. Two processes of the
same program differ by a few per cent for as long as they live, by where their memory lies; so every variant is started
several times, and the unpatched server runs twice: what its second process gives against its first is the noise that no
other figure can be finer than. All four run at the same time, sleeping while idle, and take turns in an order that
changes from round to round. With the tap on, the time ends when the part is ready.

A ratio is that of the unpatched servers' mean in the same round to the variant, by wall clock and by the CPU time of
the server's processes; the median of a start's rounds is that start's figure, and the mean of the starts counts, given
with its standard error. A figure is below its budget when it is so by more than two standard errors. A machine that
others load says nothing by wall clock: there the CPU time is judged.

What a patched server runs beside an unpatched one while the tap is off is known to the statement, so it is timed by
itself too: that figure has no noise of processes in it.
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
import timeit
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import httpx
import numpy as np
import psutil

from auxtap.checkout.source import open_source
from auxtap.checkout.worktree import apply_patch, revert
from auxtap.commands.context import cache_layout
from auxtap.core.cache import CacheLayout
from auxtap.rewriters.patch.diff import write_patch
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.serving.engine_env import set_up_engine
from auxtap.serving.processes import choose_port
from auxtap.serving.profile import LOOPBACK, LaunchSpec
from auxtap.serving.server import ServerProcess
from auxtap.tracer.source.names import GATE_NAME
from auxtap.verification.engine.engine_scripts import engine_script, run_engine_script

RELEASE, LAYERS = "0.5.9", (1, 2, 3)
N_PROMPT, N_DECODE = 1024, 48
T = TypeVar("T")
FIRST, SECOND, OFF, ON = "unpatched", "unpatched, again", "tap off", "tap on"
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

    def ask_for_states(self) -> float:
        """Ask for a prompt's states as JSON; return the CPU seconds of the server, and of making them an array."""
        ids = [random.randint(32, 126) for _ in range(N_PROMPT)]  # noqa: S311
        question = {"input_ids": ids, "sampling_params": {"max_new_tokens": 0}, "return_hidden_states": True}
        before, own = self._cpu_s(), time.process_time()
        answer = self._http.post(f"{self._spec.url}/generate", json=question)
        answer.raise_for_status()
        states = np.array(answer.json()["meta_info"]["hidden_states"][0], dtype=np.float32)
        if len(states) != N_PROMPT:
            raise SystemExit(f"the server returned states of {len(states)} tokens, not {N_PROMPT}")
        return self._cpu_s() - before + time.process_time() - own

    def _cpu_s(self) -> float:
        total = 0.0
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total


@dataclass(frozen=True)
class Ground:
    """What all starts share: for each variant its spec, but for the port, and what the patch adds to a forward."""

    specs: tuple[tuple[str, LaunchSpec], ...]
    statements: tuple[str, ...]


@contextlib.contextmanager
def prepared(cache: CacheLayout) -> Iterator[Ground]:
    """Make the model and both trees."""
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
        off = replace(first, tree=applied.path)
        # Those of a start, and the gate's imports, are not run again by a forward.
        statements = tuple(each.code for each in patch_set.plan.insertions if each.kind not in ("gate", "rank", "arm"))
        yield Ground(((FIRST, first), (SECOND, first), (OFF, off), (ON, replace(off, spool=spool))), statements)


@contextlib.contextmanager
def started(ground: Ground, number: int) -> Iterator[list[Subject]]:
    """Start a server of every variant, in an order that is another each time."""
    with contextlib.ExitStack() as stack:
        servers = []
        for place, (name, spec) in enumerate(_turned(ground.specs, number)):
            log = spec.log.with_name(f"log-{number}-{place}")
            own = replace(spec, port=choose_port(LOOPBACK, 0), log=log)
            server = stack.enter_context(ServerProcess(own))
            server.wait_ready(timeout_s=600)
            servers.append(Subject(name, own, server))
        yield servers


def _turned(items: Sequence[T], number: int) -> list[T]:
    """Return the items in an order that puts each in each place, forwards and backwards, as `number` goes up."""
    turn = number % len(items)
    turned = [*items[turn:], *items[:turn]]
    return turned[::-1] if number // len(items) % 2 else turned


def take_rounds(servers: list[Subject], rounds: int) -> dict[tuple[str, str], Took]:
    """Return each variant's ratios, for prefill and decode; the median of the rounds."""
    ratios: dict[tuple[str, str], list[Took]] = {}
    for number in range(rounds + 1):
        took: dict[tuple[str, str], Took] = {}
        for server in _turned(servers, number):
            for work, n_prompt, n_new in (("prefill", N_PROMPT, 0), ("decode", 16, N_DECODE)):
                took[work, server.name] = server.ask(n_prompt, n_new)
        for (work, name), result in took.items():
            one, other = took[work, FIRST], took[work, SECOND]
            # Against the other process of the unpatched server, where it is one of them itself.
            both = Took((one.wall + other.wall) / 2, (one.cpu + other.cpu) / 2) if name not in (FIRST, SECOND) else one
            if number and name != FIRST:  # the first round warms up
                ratio = Took(both.wall / result.wall, both.cpu / max(result.cpu, 1e-9))
                ratios.setdefault((work, name), []).append(ratio)
    return {
        key: Took(statistics.median(r.wall for r in each), statistics.median(r.cpu for r in each))
        for key, each in ratios.items()
    }


def off_cost_s(statements: Sequence[str]) -> float:
    """Return what the inserted statements take when the gate is None, each run once."""
    # The gate is a name of its module.
    module = {GATE_NAME: None}
    return sum(min(timeit.repeat(each, globals=module, number=100_000)) / 100_000 for each in statements)


def judge(starts: list[dict[tuple[str, str], Took]], *, by_wall: bool) -> bool:
    """Print every variant's figures; tell whether one is below its budget."""
    below = False
    for work in ("prefill", "decode"):
        for name in (SECOND, OFF, ON):
            taken = [start[work, name] for start in starts]
            wall, cpu = _mean([each.wall for each in taken]), _mean([each.cpu for each in taken])
            budget = BUDGETS.get((work, name))
            mean, error = wall if by_wall else cpu
            below |= budget is not None and mean + 2 * error < budget
            text = f"{work:8} {name:17} wall {wall[0]:.3f} +- {wall[1]:.3f}   CPU {cpu[0]:.3f} +- {cpu[1]:.3f}"
            _say(text + (f"   (budget {budget:.2f})" if budget is not None else ""))
    return below


def _mean(values: list[float]) -> tuple[float, float]:
    """Return the mean and its standard error, which a single value has not."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return statistics.fmean(values), error


def main() -> int:
    """Measure and print ratios; fail when one is below its budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    starts = []
    loads, seconds = [], []
    with prepared(cache_layout()) as ground:
        for number in range(arguments.starts):
            with started(ground, number) as servers:
                seconds.append(servers[0].ask(N_PROMPT, 0).wall)
                starts.append(take_rounds(servers, arguments.rounds))
            loads.append(os.getloadavg()[1])
            figures = ", ".join(f"{name} {starts[-1]['prefill', name].wall:.3f}" for name in (SECOND, OFF, ON))
            _say(f"start {number + 1} of {arguments.starts}: prefill by wall clock: {figures}")
    cost, prefill_s = off_cost_s(ground.statements), statistics.median(seconds)
    _say(
        f"tap off: {len(ground.statements)} statements a forward, {cost * 1e9:.0f} ns in all, "
        f"of {prefill_s * 1e3:.0f} ms: 1 - {cost / prefill_s:.0e}"
    )
    load, cores = statistics.median(loads), os.cpu_count() or 1
    quiet = load <= cores + 1  # the servers themselves take one core, this process hardly any
    _say(f"load {load:.1f} on {cores} cores: judged by {'wall clock' if quiet else 'CPU time'}")
    return int(judge(starts, by_wall=quiet))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
