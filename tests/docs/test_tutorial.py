"""The tutorial does what it says: its commands, in its order, with a real server."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from auxtap.serving.processes import StopPatience, stop_session
from auxtap.tests.docs.conftest import ROOT, Block, blocks_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
BLOCKS = blocks_of(ROOT / "docs/tutorial.md")
READY_S = 240.0


def test_the_tutorial(tmp_path: Path) -> None:
    for block in BLOCKS:
        if block.language == "python":
            (tmp_path / block.title).write_text(block.text)
    server = None
    try:
        for block in BLOCKS:
            if block.title == "server":
                server = start(block, tmp_path)
            elif block.title == "run":
                said = run(block, tmp_path)
    finally:
        if server is not None:
            stop_session(server.pid, StopPatience())
            server.wait()
    assert said.splitlines()[0] == "3 samples of LlamaForCausalLM"
    assert "'hidden.2': (5, 64)" in said and "'hidden.5': (1, 64)" in said and "'final': (6, 64)" in said
    assert (tmp_path / "store/manifest.json").is_file()
    (last,) = (block for block in BLOCKS if block.title == "last")
    run(last, tmp_path)
    assert not (tmp_path / "tapped").exists() and not (tmp_path / "store").exists()


def test_the_installation_is_checked_elsewhere() -> None:
    """Blocks without a title are not run: they install, which the packaging tests do."""
    untitled = [block.text for block in BLOCKS if block.language == "sh" and not block.title]
    assert len(untitled) == 1 and untitled[0].startswith("pip install auxtap")


def environment(folder: Path) -> dict[str, str]:
    """The tutorial's programs are those of this environment."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}


def run(block: Block, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euc", block.text], cwd=folder, env=environment(folder), capture_output=True, text=True
    )
    assert done.returncode == 0, f"{block.text}\n{done.stderr}"
    return done.stdout


def start(block: Block, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            ["bash", "-euc", f"exec {block.text}"],
            cwd=folder,
            env=environment(folder),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + READY_S
    while "/30111" not in (folder / "serve.log").read_text().replace(":30111", "/30111") or not answers():
        assert server.poll() is None and time.monotonic() < deadline, (folder / "serve.log").read_text()
        time.sleep(0.5)
    return server


def answers() -> bool:
    try:
        return httpx.get("http://127.0.0.1:30111/health", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
