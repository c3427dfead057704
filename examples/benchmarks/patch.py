"""Time writing and proving one release's patch against its kept trace, and the sweep of all releases; print a table.

Run: python examples/benchmarks/patch.py [--no-sweep] [RELEASE ...]

CPU time is compared, that of git and of the probe's interpreter included, so that other load does not decide; the wall
is shown beside it. The sweep writes and proves every release with `--dry-run` (minutes); it has no budget.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

RELEASES = ("0.5.9", "0.5.23")
MAX_TRACES, MAX_MORE_S = 3.0, 2.0
N_ROUNDS = 3


@dataclass(frozen=True)
class Cost:
    """What one command took: CPU and wall seconds, and its largest resident size."""

    cpu_s: float
    wall_s: float
    mib: float


def main() -> int:
    """Measure each command in a process of its own, start-up included."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="*", default=RELEASES)
    parser.add_argument("--no-sweep", action="store_true", help="Leave out the sweep of all releases.")
    arguments = parser.parse_args()
    over = False
    _say("release   trace cpu s  patch cpu s  budget  wall s  peak MiB")
    with tempfile.TemporaryDirectory() as out:
        for release in arguments.releases:
            source = f"pypi:{release}"
            _cost("trace", source)
            trace, patch = _least("trace", source), _least("patch", source, "--out", out)
            budget = MAX_TRACES * trace.cpu_s + MAX_MORE_S
            over |= patch.cpu_s > budget
            figures = f"{trace.cpu_s:11.2f} {patch.cpu_s:12.2f} {budget:7.2f} {patch.wall_s:7.2f} {patch.mib:9.0f}"
            _say(f"{release:9} {figures}")
    if not arguments.no_sweep:
        cost = _cost("sweep", "--dry-run")
        _say(f"sweep of all releases: {cost.cpu_s:.0f} s CPU, {cost.wall_s:.0f} s wall, {cost.mib:.0f} MiB")
    return int(over)


def _least(*arguments: str) -> Cost:
    return min((_cost(*arguments) for _ in range(N_ROUNDS)), key=lambda cost: cost.cpu_s)


def _cost(*arguments: str) -> Cost:
    command = [sys.executable, "-m", "auxtap.cli", *arguments]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # The process's own figures, which hold those of the children it waited for.
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"auxtap {' '.join(arguments)} ended with {process.returncode}")
    return Cost(used.ru_utime + used.ru_stime, time.perf_counter() - start, used.ru_maxrss / 1024)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
