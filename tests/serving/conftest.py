"""A stand-in for SGLang's server: the same module name, a real process, a real loopback port."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from auxtap.serving.processes import choose_port
from auxtap.serving.profile import LaunchSpec

PRELUDE = """\
import argparse, http.server, json, os, signal, sys, time
parser = argparse.ArgumentParser()
for option in ("--model-path", "--host", "--port"):
    parser.add_argument(option)
known, _ = parser.parse_known_args()

def arm(pp=0, pp_size=1):
    spool = os.environ["AUXTAP_SPOOL"]
    record = {"pp_rank": pp, "pp_size": pp_size, "dp_rank": 0, "dp_size": 1}
    with open(f"{spool}/rank-fake-{pp}-0.json", "w") as file:
        json.dump(record, file)

def serve(healthy=True):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if healthy else 503)
            self.end_headers()
        def log_message(self, *args): pass
    server = http.server.HTTPServer((known.host, int(known.port)), Handler)
    print("The server is fired up and ready to roll!", flush=True)
    server.serve_forever()
"""

MakeSpec = Callable[[str], LaunchSpec]


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    """Return a function from the body of a fake `sglang.launch_server` to the spec that launches it."""

    def make(body: str) -> LaunchSpec:
        package = tmp_path / "tree" / "python" / "sglang"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "launch_server.py").write_text(PRELUDE + body)
        return LaunchSpec(
            python=Path(sys.executable),
            tree=tmp_path / "tree",
            model_path="/models/tiny",
            port=choose_port("127.0.0.1", 0),
            log=tmp_path / "logs" / "server.log",
            bytecode=tmp_path / "bytecode",
            spool=tmp_path / "spool",
            layers=(1,),
            extra_environment={"HOME": os.environ.get("HOME", "/")},
        )

    return make
