"""Whatever a folder holds, the trace goes on: what cannot be read or parsed is named and passed over."""

import os
import sys
import sysconfig
from pathlib import Path, PurePosixPath

import pytest

from auxtap.core.errors import SourceError
from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tests.tracer.releases import release_tree
from auxtap.tests.tracer.test_command import run
from auxtap.tracer.source.folder import read_folder
from auxtap.tracer.source.fragments import SourceFile
from auxtap.tracer.tracing import trace_file, trace_tree

pytestmark = pytest.mark.slow

NAME = b"def f(aux_hidden_states):\n    return aux_hidden_states\n"


def tree_of(files: dict[str, bytes]) -> SourceTree:
    return SourceTree("unknown", "folder", "0" * 40, {PurePosixPath(name): data for name, data in files.items()})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"def aux_hidden_states(:\n", "cannot parse"),
        (b"print 'aux_hidden_states'\n", "cannot parse"),
        (b"# coding: latin-1\n# caf\xe9\n" + NAME, None),
        (b"\xef\xbb\xbf" + NAME, None),
        (b"aux_hidden_states = '\xe9'\n", "cannot decode"),
        (NAME + b"x = 0\x00\n", "cannot parse"),
        (NAME + b"x = '" + b"y" * (10 << 20) + b"'\n", "has 10 MiB"),
        (NAME + b"x = " + b"(" * 500 + b")" * 500 + b"\n", "cannot parse"),
        (NAME + b"x = " + b"-" * 20_000 + b"1\n", None),
        (b"def f(aux_hidden_states):\n    return " + b"1 + " * 5_000 + b"1\n", None),
        (b"".join(b" " * depth + b"if aux_hidden_states:\n" for depth in range(99)) + b" " * 99 + b"pass\n", None),
        (NAME.replace(b"\n", b"\r"), None),
        (NAME[:-1], None),
        (b"\x0c" + NAME, None),
    ],
    ids=range(14),
)
def test_odd_files(data: bytes, reason: str | None) -> None:
    report = trace_tree(tree_of({"odd.py": data, "plain.py": NAME}), everything=True)
    assert "plain.py" in {trace.file.name for trace in report.files}
    if reason is not None:
        assert [(item.file.name, reason in item.reason) for item in report.skipped] == [("odd.py", True)]
    elif report.skipped:
        # How deep is too deep is up to the interpreter and to libcst.
        assert "deep" in report.skipped[0].reason or "recursion" in report.skipped[0].reason.lower()
    else:
        assert "odd.py" in {trace.file.name for trace in report.files}


def test_the_one_file_that_was_asked_for_must_parse() -> None:
    files = {str(SRT_ROOT / "server_args.py"): b"", str(SRT_ROOT / "models/odd.py"): b"aux_hidden_states = (\n"}
    with pytest.raises(SourceError, match="cannot parse"):
        trace_tree(tree_of(files), only=PurePosixPath("models/odd.py"))


def test_a_folder_with_everything_in_it(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_bytes(NAME)
    (tmp_path / "bad.py").write_bytes(b"def aux_hidden_states(:\n")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "round.py").symlink_to(tmp_path / "round.py")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "folder.py").mkdir()
    closed = tmp_path / "closed.py"
    closed.write_bytes(NAME)
    closed.chmod(0)
    unreadable = {"round.py", "gone.py"} | (set() if os.access(closed, os.R_OK) else {"closed.py"})
    found = read_folder(tmp_path)
    assert {str(item.file) for item in found.skipped} == unreadable
    result = run(str(tmp_path), "--folder", "--fresh")
    assert result.returncode == 1, result.stderr
    assert "passed over" in result.stderr
    for name in (*unreadable, "bad.py"):
        assert name in result.stdout
    assert "good.py" in result.stdout
    assert "Traceback" not in result.stderr


@pytest.fixture
def stride(request: pytest.FixtureRequest) -> int:
    """Return how many files to go on by: every file with `--all-releases`, else some from everywhere."""
    return 1 if request.config.getoption("--all-releases") else 25


def trace_with_a_name(path: PurePosixPath, data: bytes) -> bool:
    """Trace a file with a name of the pipeline at its end, and parse all of it; tell whether both could be done."""
    try:
        trace = trace_file(path, data + b"\n\n" + NAME)
        source = SourceFile.read(path, data)
        parsed = [source.fragment(unit) for unit in source.outline.units]
    except SourceError:
        return False
    assert trace.capture_sites
    assert len(parsed) == len(source.outline.units)
    return True


@pytest.mark.network
@pytest.mark.timeout(3600)
def test_every_file_of_the_newest_release(stride: int) -> None:
    files = list(release_tree("0.5.23").files.items())
    assert all(trace_with_a_name(path, data) for path, data in files[::stride])


@pytest.mark.timeout(3600)
def test_the_standard_library_and_its_tests(stride: int) -> None:
    found = read_folder(Path(sysconfig.get_paths()["stdlib"]))
    files = [(path, data) for path, data in found.tree.files.items() if "site-packages" not in path.parts]
    assert len(files) > 500
    odd = [path for path, data in files[::stride] if not trace_with_a_name(path, data)]
    assert len(odd) <= 3 + len(files) // stride / 20, sys.version
