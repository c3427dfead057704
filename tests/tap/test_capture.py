"""The cases of capture_script.py, run by the engine's python on real torch tensors."""

import ast
import json
import shutil
import subprocess
from pathlib import Path

import pytest

import auxtap.tap

SCRIPT = Path(__file__).with_name("capture_script.py")
CASES = [
    node.name
    for node in ast.parse(SCRIPT.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("case_")
]


@pytest.fixture(scope="module")
def results(engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("capture")
    shutil.copytree(Path(auxtap.tap.__file__).parent, folder / "tapped")
    command = [engine.python, str(SCRIPT), str(folder), str(folder / "scratch")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.engine
@pytest.mark.parametrize("case", CASES)
def test_capture(results, case):
    assert results[case] == "ok", results[case]
