"""Time the trace of whole releases against a bare libcst parse of the files it reads; print a table, fail over budget.

Trace and parse are each one process, in turn, and what is compared is their least CPU time: both work on one core and
wait for nothing, so that other load does not decide. The time of a kept trace is that on the wall, start-up included.

Run: python examples/benchmarks/trace.py [RELEASE ...]
"""

import argparse
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from auxtap.checkout.source import open_source
from auxtap.commands.context import cache_layout
from auxtap.tracer.tracing import trace_tree

RELEASES = ("0.5.9", "0.5.23")
MAX_RATIO, MAX_WARM_S, MAX_MIB = 1.0, 0.3, 400
N_ROUNDS = 2
N_WARM = 5


def main() -> int:
    """Measure each release in processes of their own, so that no measurement warms up the next."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="*", default=RELEASES)
    parser.add_argument("--part", choices=("trace", "parse"), help=argparse.SUPPRESS)
    parser.add_argument("--files", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part is not None:
        _say(json.dumps(_measure_part(arguments.part, arguments.releases[0], Path(arguments.files))))
        return 0
    over = False
    _say("release   files  bare s  trace s  ratio  peak MiB  warm s")
    for release in arguments.releases:
        with tempfile.NamedTemporaryFile("w+") as listed:
            rounds = [[_part(part, release, listed.name) for part in ("trace", "parse")] for _ in range(N_ROUNDS)]
        trace, parse = (min(results, key=lambda result: result["s"]) for results in zip(*rounds, strict=True))
        ratio, warm = trace["s"] / parse["s"], _warm_s(release)
        over |= ratio > MAX_RATIO or warm > MAX_WARM_S or trace["mib"] > MAX_MIB
        figures = f"{parse['s']:6.2f} {trace['s']:8.2f} {ratio:6.2f} {trace['mib']:9.0f} {warm:7.2f}"
        _say(f"{release:9} {trace['files']:5.0f} {figures}")
    _say(f"budget                           {MAX_RATIO:6.2f} {MAX_MIB:9} {MAX_WARM_S:7.2f}")
    return int(over)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _part(part: str, release: str, files: str) -> dict[str, float]:
    command = [sys.executable, __file__, release, "--part", part, "--files", files]
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


def _measure_part(part: str, release: str, files: Path) -> dict[str, float]:
    import libcst

    tree = open_source(f"pypi:{release}", cache_layout()).tree
    if part == "trace":
        start = time.process_time()
        report = trace_tree(tree, everything=True)
        elapsed = time.process_time() - start
        hit = {trace.file for trace in report.files}
        needed = {item.file for hazard in report.hazards for item in hazard.evidence}
        files.write_text(json.dumps(sorted(map(str, hit | needed))))
        n_files = len(hit | needed)
    else:
        wanted = set(json.loads(files.read_text()))
        contents = [data for path, data in tree.files.items() if str(path) in wanted]
        gc.disable()
        start = time.process_time()
        for data in contents:
            libcst.parse_module(data)
        elapsed = time.process_time() - start
        n_files = len(contents)
    return {"s": elapsed, "files": n_files, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _warm_s(release: str) -> float:
    """Return the best wall time of the whole command, start-up included, with its results kept."""
    command = [sys.executable, "-m", "auxtap.cli", "trace", f"pypi:{release}"]
    times = []
    for _ in range(N_WARM + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times[1:])


if __name__ == "__main__":
    sys.exit(main())
