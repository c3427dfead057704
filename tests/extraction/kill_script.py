"""Fork extractors and fake servers from one process that has imported everything, so that each is quick to kill.

One JSON object a line on stdin; the pid of the child on stdout. Children are reaped by the kernel.
"""

import importlib.util
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from auxtap.extraction.datasets.reading import read_dataset
from auxtap.extraction.run.driver import ExtractionJob, run_extraction


def fakes() -> Any:
    spec = importlib.util.spec_from_file_location("fakes", Path(__file__).with_name("conftest.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fakes"] = module
    spec.loader.exec_module(module)
    return module


def extract(request: dict[str, Any]) -> None:
    job = ExtractionJob(
        dataset=read_dataset(Path(request["dataset"])),
        server_url=request["url"],
        spool=Path(request["spool"]),
        store=Path(request["store"]),
        concurrency=request["concurrency"],
        timeout_s=30.0,
        parts_timeout_s=request["parts_timeout_s"],
        stall_timeout_s=5.0,
        backoff_s=0.05,
        max_tries=50,
        wait_for_server_s=30.0,
    )
    result = {"error": "", "complete": False, "failed": 0}
    try:
        summary = run_extraction(job)
        result.update(complete=summary.complete, failed=summary.failed, said=[f.reason for f in summary.not_stored])
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    temporary = Path(request["result"] + ".tmp")
    temporary.write_text(json.dumps(result))
    temporary.rename(request["result"])


def serve(request: dict[str, Any], module: Any) -> None:
    spool = Path(request["spool"])
    for path in spool.iterdir():
        if path.name.endswith(".part"):  # as the tap does when it is armed
            path.unlink()
    tap = module.FakeTap(spool, stages=tuple(tuple(stage) for stage in request["stages"]), nonce=request["nonce"])
    server = module.FakeServer(tap, request["port"])
    server.delay_s = request["delay_s"]
    tap.announce()
    threading.Event().wait()


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    module = fakes()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                if request["op"] == "serve":
                    serve(request, module)
                else:
                    extract(request)
            finally:
                os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
