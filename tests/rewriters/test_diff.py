"""The patch as bytes: git reads it as it is meant, and the same plan gives the same bytes."""

from pathlib import Path, PurePosixPath

import pytest

from auxtap.core.source_tree import SourceTree
from auxtap.rewriters.patch.diff import PatchSet, write_patch
from auxtap.rewriters.patch.plan import CapturePlan, NewFile, plan_capture
from auxtap.rewriters.patch.registry import DEFAULT_MODELS
from auxtap.rewriters.places.insertion import Insertion
from auxtap.tests.shaped import git, shaped_tree, write_files

PATH = PurePosixPath("python/sglang/a.py")


def patch_set(before: bytes, lines: list[int], new: dict[str, bytes] | None = None, newline: str = "\n") -> PatchSet:
    insertions = tuple(Insertion("note", PATH, "f", "here", line, f"new {line}", newline) for line in lines)
    files = tuple(NewFile(PATH.with_name(name), data) for name, data in (new or {}).items())
    plan = CapturePlan("0.5.9", ("llama",), (3,), insertions, files, ())
    return write_patch(SourceTree("0.5.9", "here", "0" * 40, {PATH: before}), plan)


def numbered(n: int) -> bytes:
    return b"".join(b"line %d\n" % i for i in range(1, n + 1))


CASES = {
    "at the start": (numbered(9), [1]),
    "in the middle": (numbered(9), [5]),
    "close together": (numbered(30), [5, 8, 14]),
    "far apart": (numbered(60), [2, 30, 58]),
    "before the last line": (numbered(9), [9]),
    "after the last line": (numbered(9), [10]),
    "no newline at the end": (numbered(9)[:-1], [8]),
    "windows line ends": (numbered(9).replace(b"\n", b"\r\n"), [4]),
}


@pytest.mark.parametrize("people", [False, True], ids=["zero context", "three lines"])
@pytest.mark.parametrize("name", CASES)
def test_git_applies_it(name: str, people: bool, tmp_path: Path) -> None:
    before, lines = CASES[name]
    made = patch_set(before, lines, newline="\r\n" if b"\r" in before else "\n")
    write_files(tmp_path, {PATH: before})
    git(tmp_path, "init", "--quiet")
    (tmp_path / "it.patch").write_bytes(made.for_people() if people else made.patch)
    git(tmp_path, "apply", *([] if people else ["--unidiff-zero"]), "it.patch")
    assert (tmp_path / PATH).read_bytes() == made.changes[0].after
    assert made.changes[0].after.count(b"new ") == len(lines)


def test_new_files_are_whole(tmp_path: Path) -> None:
    new = {"empty.py": b"", "one.py": b"x = 1\n", "open.py": b"x = 1\ny = 2", "long.py": numbered(400)}
    made = patch_set(numbered(3), [2], new)
    write_files(tmp_path, {PATH: numbered(3)})
    git(tmp_path, "init", "--quiet")
    (tmp_path / "it.patch").write_bytes(made.patch)
    git(tmp_path, "apply", "--unidiff-zero", "it.patch")
    assert {name: (tmp_path / PATH.with_name(name)).read_bytes() for name in new} == new


def test_is_what_git_itself_writes(tmp_path: Path) -> None:
    """Same hunks and same blob names as `git diff -U0`, but for the mode, and for what git says behind the ranges."""
    made = patch_set(numbered(30), [5, 14])
    write_files(tmp_path, {PATH: numbered(30)})
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    write_files(tmp_path, {PATH: made.changes[0].after})
    written = git(tmp_path, "diff", "--unified=0", "--full-index") + "\n"
    lines = [line.removesuffix(" 100644") for line in written.splitlines()]
    assert [line.partition(" @@ ")[0].removesuffix(" @@") for line in lines] == [
        line.removesuffix(" @@") for line in made.patch.decode().splitlines()
    ]


def test_the_zero_context_form_holds_no_upstream_line() -> None:
    tree = shaped_tree()
    made = write_patch(tree, plan_capture(tree, DEFAULT_MODELS, (3,)))
    upstream = {line.strip() for change in made.changes for line in change.before.splitlines() if line.strip()}
    body = made.patch.split(b"diff --git a/python/sglang/srt/auxtap/")[0].splitlines()
    assert not [line for line in body if line[1:].strip() in upstream]
    assert not [line for line in body if line.startswith(b"-") and not line.startswith(b"--- ")]


def test_the_same_plan_gives_the_same_bytes_whatever_the_order_of_files() -> None:
    tree = shaped_tree()
    turned = SourceTree(tree.release, tree.origin, tree.commit, dict(reversed(list(tree.files.items()))))
    first, second = (write_patch(each, plan_capture(each, DEFAULT_MODELS, (3,))) for each in (tree, turned))
    assert first.patch == second.patch and first.digest == second.digest
    assert (len(first.changes), first.n_inserted) == (5, 15)
