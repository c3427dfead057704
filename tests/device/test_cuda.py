"""The tap's copies on a CUDA device; without one they count as not run."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from auxtap.serving.engine_env import EngineEnvironment

SCRIPT = Path(__file__).with_name("cuda_script.py")
CHECKS = [
    node.name
    for node in ast.parse(SCRIPT.read_text()).body
    if isinstance(node, ast.FunctionDef) and any(ast.unparse(decorator) == "check" for decorator in node.decorator_list)
]
# A Python whose torch has CUDA, where this one has none.
ENV_PYTHON = "AUXTAP_TORCH_PYTHON"


def run(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=240)


def records(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, object]]:
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {str(line["check"]): line for line in lines if "check" in line}


@pytest.mark.parametrize("name", CHECKS)
def test_on_the_device(cuda_records: dict[str, dict[str, object]], name: str) -> None:
    assert cuda_records[name]["ok"], cuda_records[name].get("why")


@pytest.fixture(scope="module")
def cuda_records() -> dict[str, dict[str, object]]:
    done = run(os.environ.get(ENV_PYTHON, sys.executable))
    if done.returncode == 77 or "No module named 'torch'" in done.stderr:
        pytest.skip("not run: no CUDA device")
    sys.stdout.write(done.stdout)
    found = records(done)
    assert found, done.stderr
    return found


@pytest.mark.engine
def test_the_script_itself_on_a_cpu(engine: EngineEnvironment, tmp_path: Path) -> None:
    done = run(str(engine.python), "--cpu", "--gib", "0.05", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(records(done)) == CHECKS
    assert not list(tmp_path.iterdir())


@pytest.mark.engine
def test_without_a_device_it_says_so_and_counts_as_not_run(engine: EngineEnvironment) -> None:
    done = subprocess.run(
        [engine.python, SCRIPT], capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    )
    assert (done.stdout, done.returncode) == ("not run: no CUDA device\n", 77)
