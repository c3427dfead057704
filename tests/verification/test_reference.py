"""A reference process that ends badly: no result, and the reason."""

from pathlib import Path

import pytest

from auxtap.core.errors import CheckFailedError
from auxtap.verification.engine.reference import StoreAndModel, compare_stores


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("kill -9 $$", r"the reference was killed by SIGKILL \(out of memory\?\)"),
        (
            "echo 'ModuleNotFoundError: No module named transformers' >&2; exit 1",
            "the reference failed: ModuleNotFound",
        ),
        ("exit 3", "the reference failed: exit 3"),
        ("exec sleep 60", "the reference took longer than 1 s"),
    ],
)
def test_a_reference_that_ends_badly_is_no_result(tmp_path: Path, program: str, message: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    with pytest.raises(CheckFailedError, match=message):
        compare_stores([StoreAndModel(tmp_path, tmp_path)], python, timeout_s=1.0)
