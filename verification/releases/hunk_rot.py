"""How a patch of one release fares on the next one when it is applied as text: what a hand-kept patch would do."""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from auxtap.core.source_tree import SourceTree
from auxtap.rewriters.patch.diff import PatchSet

TIMEOUT_S = 60
_HUNK = re.compile(rb"^@@ ", re.MULTILINE)
_FAILED = re.compile(r"(\d+) out of (\d+) hunks? (?:FAILED|ignored)")


@dataclass(frozen=True)
class HunkRot:
    """`failed` of `total` hunks (three lines of context, no fuzz) do not apply."""

    failed: int
    total: int


def measure_rot(earlier: PatchSet, tree: SourceTree) -> HunkRot | None:
    """Try the earlier release's patch on `tree` with `patch --dry-run -F0`; None where there is no such program."""
    program = shutil.which("patch")
    if program is None:
        return None
    text = earlier.for_people()
    total = len(_HUNK.findall(text))
    with tempfile.TemporaryDirectory(prefix="auxtap-rot-") as folder:
        for change in earlier.changes:
            data = tree.files.get(change.path)
            if data is None:
                continue
            target = Path(folder, change.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        command = [program, "-p1", "-F0", "--dry-run", "--force", "--binary", "--reject-file=-"]
        run = subprocess.run(command, cwd=folder, input=text, capture_output=True, timeout=TIMEOUT_S, check=False)
    said = (run.stdout + run.stderr).decode(errors="replace")
    failed = sum(int(count) for count, _ in _FAILED.findall(said))
    return HunkRot(failed if run.returncode else 0, total)
