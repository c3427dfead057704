"""The switch: what a server imports while it is off."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import auxtap.tap

LIST_MODULES = """
import json, sys
import tapped.gate as gate
print(json.dumps([gate.tap is None, sorted(name for name in sys.modules if name.startswith("tapped"))]))
"""


def _modules(tmp_path: Path, **environment: str) -> list[Any]:
    shutil.copytree(Path(auxtap.tap.__file__).parent, tmp_path / "tapped")
    base = {key: value for key, value in os.environ.items() if not key.startswith("AUXTAP_")}
    result = subprocess.run(
        [sys.executable, "-c", LIST_MODULES],
        cwd=tmp_path,
        env={**base, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    modules: list[Any] = json.loads(result.stdout)
    return modules


def test_off_imports_the_gate_only(tmp_path):
    assert _modules(tmp_path) == [True, ["tapped", "tapped.gate"]]


def test_empty_is_off(tmp_path):
    assert _modules(tmp_path, AUXTAP_SPOOL="")[0] is True


def test_on_imports_the_tap(tmp_path):
    off, modules = _modules(tmp_path, AUXTAP_SPOOL="/x")
    assert off is False
    assert "tapped.engine" in modules
