"""Trees for the tracer's tests, made of the fixtures."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from auxtap.core.source_tree import PACKAGE_ROOT, SRT_ROOT, SourceTree
from auxtap.tracer.report.entries import FileTrace
from auxtap.tracer.tracing import trace_file

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
SUFFIX = ".source.py"
MODELS = SRT_ROOT / "models"


def read_fixture(name: str) -> bytes:
    return (FIXTURES / "tracer/srt" / f"{name}{SUFFIX}").read_bytes()


@pytest.fixture
def fixture_files() -> dict[PurePosixPath, bytes]:
    """Return the fixture tree's files; a test may change them."""
    root = FIXTURES / "tracer"
    return {
        PACKAGE_ROOT / path.relative_to(root).as_posix().replace(SUFFIX, ".py"): path.read_bytes()
        for path in sorted(root.rglob(f"*{SUFFIX}"))
    }


@pytest.fixture
def make_tree() -> Callable[[dict[PurePosixPath, bytes]], SourceTree]:
    """Return a maker of trees."""
    return lambda files: SourceTree("0.0.1", "fixtures", "0" * 40, files)


@pytest.fixture
def fixture_tree(fixture_files: dict[PurePosixPath, bytes]) -> SourceTree:
    """Return the fixture tree."""
    return SourceTree("0.0.1", "fixtures", "0" * 40, fixture_files)


@pytest.fixture
def trace_source() -> Callable[[str | bytes], FileTrace]:
    """Return a tracer of single sources."""

    def trace(source: str | bytes) -> FileTrace:
        data = source.encode() if isinstance(source, str) else source
        return trace_file(MODELS / "sample.py", data)

    return trace
