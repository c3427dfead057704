"""Trace every release of the lock table and write docs/trace-sweep.md.

Run: python examples/benchmarks/trace_sweep.py
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from auxtap.checkout.source import open_source
from auxtap.commands.context import cache_layout
from auxtap.core.files import publish_bytes
from auxtap.tracer.report.trace_sweep import SweepRow, row_of, table_rows, write_table
from auxtap.tracer.tracing import trace_tree

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Trace each release in a process of its own, as a person would."""
    if len(sys.argv) == 2:
        tree = open_source(f"pypi:{sys.argv[1]}", cache_layout()).tree
        start = time.perf_counter()
        report = trace_tree(tree, everything=True)
        sys.stdout.write(write_table([row_of(report, time.perf_counter() - start)]))
        return 0
    rows: list[SweepRow] = []
    for release in json.loads((ROOT / "checkout/releases.json").read_text()):
        command = [sys.executable, __file__, release]
        result = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.extend(table_rows(result.stdout))
        sys.stderr.write(f"{rows[-1]}\n")
    publish_bytes(ROOT / "docs/trace-sweep.md", write_table(rows).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
