"""The inserted lines are as SGLang's own formatters (black and isort, here as ruff has them) leave them."""

import difflib
import subprocess
import sys
from pathlib import Path

import pytest

from auxtap.checkout.source import open_source
from auxtap.core.cache import CacheLayout
from auxtap.rewriters.patch.diff import write_patch
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.tests.shaped import LLAMA, shaped_tree

pytestmark = pytest.mark.slow

RUFF = Path(sys.executable).with_name("ruff")
SETTINGS = 'line-length = 88\n[lint]\nselect = ["I", "E701", "F401"]\n[lint.isort]\nknown-first-party = ["sglang"]\n'


def formatted(data: bytes, folder: Path) -> list[str]:
    config, file = folder / "ruff.toml", folder / "module.py"
    config.write_text(SETTINGS)
    file.write_bytes(data)
    for command in (["check", "--fix-only", "--quiet"], ["format", "--quiet"]):
        subprocess.run([RUFF, *command, "--config", config, file], check=True)
    return file.read_text().splitlines()


def added(before: list[str], after: list[str]) -> list[str]:
    """Return what the second has more than the first, with a minus for what it has less."""
    lines = difflib.unified_diff(before, after, n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


@pytest.mark.network
@pytest.mark.parametrize("release", ["0.4.5", "0.5.9", "0.5.23"])
def test_the_formatters_leave_the_inserted_lines_alone(release: str, shared_cache: CacheLayout, tmp_path: Path) -> None:
    tree = open_source(f"pypi:{release}", shared_cache).tree
    for change in write_patch(tree, plan_capture(tree, ("deepseek", "llama"), (3,))).changes:
        inserted = [f"+{line}" for each in change.insertions for line in each.text.split("\n")]
        found = added(formatted(change.before, tmp_path), formatted(change.after, tmp_path))
        assert found == inserted, change.path


def test_a_statement_on_one_line_would_not_be_left_alone(tmp_path: Path) -> None:
    before = shaped_tree().files[LLAMA]
    line = b"        if not self.pp_group.is_last_rank:\n"
    after = before.replace(line, b"        if _auxtap is not None: _auxtap.stage(self)\n" + line, 1)
    assert added(formatted(before, tmp_path), formatted(after, tmp_path)) == [
        "+        if _auxtap is not None:",
        "+            _auxtap.stage(self)",
    ]
