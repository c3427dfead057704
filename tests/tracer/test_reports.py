"""Comparisons, the page, the cache and the filters."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

import pytest
from rich.console import Console, Group

from auxtap.commands.views.trace_diff_view import comparison_parts
from auxtap.commands.views.trace_html import page_of
from auxtap.core.codec import decode, encode
from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tests.tracer.conftest import FIXTURES
from auxtap.tests.tracer.releases import release_tree
from auxtap.tests.tracer.test_command import run
from auxtap.tracer import tracing
from auxtap.tracer.report.compare import compare
from auxtap.tracer.report.entries import FileTrace
from auxtap.tracer.report.trace_report import TraceReport
from auxtap.tracer.source.fragments import SourceFile
from auxtap.tracer.source.trace_cache import TraceCache
from auxtap.tracer.tracing import trace_tree

PLAIN = SRT_ROOT / "models/plain.py"


def changed(tree: SourceTree, old: str, new: str, path: PurePosixPath = PLAIN) -> SourceTree:
    text = tree.files[path].decode()
    assert old in text
    return replace(tree, files={**tree.files, path: text.replace(old, new).encode()})


def test_nothing_changed_but_lines(fixture_tree: SourceTree) -> None:
    moved = replace(fixture_tree, files={**fixture_tree.files, PLAIN: b"# first\n" * 9 + fixture_tree.files[PLAIN]})
    comparison = compare(trace_tree(fixture_tree, everything=True), trace_tree(moved, everything=True))
    assert (comparison.changes, comparison.matters) == ((), False)
    assert comparison.n_same > 50


@pytest.mark.parametrize(
    ("old", "new", "kind", "matters"),
    [
        (
            "                aux_hidden_states.append(hidden_states + residual)\n",
            "                pass\n",
            "gone",
            True,
        ),
        ("hidden_states + residual)\n", "hidden_states)\n", "changed", True),
        ("class PlainModel", "class OtherModel", "moved", False),
        ("        aux_hidden_states = None\n", "        aux_hidden_states = None\n" * 2, "new", False),
    ],
)
def test_changes(fixture_tree: SourceTree, old: str, new: str, kind: str, matters: bool) -> None:
    other = changed(fixture_tree, old, new)
    comparison = compare(trace_tree(fixture_tree, everything=True), trace_tree(other, everything=True))
    assert {change.kind for change in comparison.changes} == {kind}
    assert any(change.matters for change in comparison.changes) is matters
    back = compare(trace_tree(other, everything=True), trace_tree(fixture_tree, everything=True))
    assert len(back.changes) == len(comparison.changes)


def test_what_a_changed_or_moved_site_was_stands_on_a_line_of_its_own(fixture_tree: SourceTree) -> None:
    old = trace_tree(fixture_tree, everything=True)
    for before, after, said in (
        ("hidden_states + residual)\n", "hidden_states)\n", "was: aux_hidden_states.append(hidden_states + residual)"),
        ("class PlainModel", "class OtherModel", "from models/plain.py:"),
    ):
        new = trace_tree(changed(fixture_tree, before, after), everything=True)
        console = Console(width=120)
        with console.capture() as capture:
            console.print(Group(*comparison_parts(compare(old, new))))
        lines = [line.strip() for line in capture.get().split("\n")]
        assert any(line.startswith(said) for line in lines), said


@pytest.mark.slow
@pytest.mark.network
def test_a_way_that_is_whole_after_an_upgrade() -> None:
    """Kimi-K2.5 has no setter in 0.5.9 and cannot be a stage there; in 0.5.10 both are mended."""
    old, new = (trace_tree(release_tree(release), ["kimi_k25"]) for release in ("0.5.9", "0.5.10"))
    comparison = compare(old, new)
    assert len(comparison.breaks_gone) == 2
    assert comparison.breaks_new == ()
    assert compare(new, old).breaks_new == comparison.breaks_gone


@pytest.mark.slow
@pytest.mark.network
def test_an_upgrade_that_matters() -> None:
    """From 0.5.13 on deepseek adds 1 only to lists whose first id is 1."""
    old, new = (trace_tree(release_tree(release), ["deepseek_v2"]) for release in ("0.5.12.post1", "0.5.13"))
    comparison = compare(old, new)
    assert comparison.matters
    ((before, after),) = comparison.rules_changed
    assert before is not None
    assert after is not None
    assert [(item.offset, item.condition) for item in before.offsets] == [(1, None)]
    assert [(item.offset, item.condition) for item in after.offsets] == [
        (1, "layer_ids and layer_ids[0] == 1"),
        (0, "otherwise"),
    ]


class Page(HTMLParser):
    """Gathers what a page loads and which tags it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_stands_alone_and_escapes(fixture_tree: SourceTree) -> None:
    evil = changed(fixture_tree, "hidden_states + residual)\n", "hidden_states + '<script>alert(1)</script>&')\n")
    report = replace(trace_tree(evil, everything=True, num_layers=61), origin='"><img src=x onerror=y>')
    page = page_of(report)
    parsed = Page()
    parsed.feed(page)
    assert parsed.loads == []
    assert not {"script", "img", "iframe", "link"} & parsed.tags
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in page
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == len(report.flows)
    for drawing in drawings:
        ElementTree.fromstring(drawing)
    assert page == page_of(report)


def test_a_report_survives_its_encoding(fixture_tree: SourceTree) -> None:
    report = trace_tree(fixture_tree, everything=True, num_layers=61)
    assert decode(TraceReport, encode(report)) == report


@dataclass(frozen=True)
class Held:
    names: frozenset[str]
    reasons: Mapping[str, str]


def test_sets_and_mappings_are_read_back() -> None:
    held = Held(frozenset({"b", "a"}), {"z": "1", "c": "2"})
    read = decode(Held, encode(held))
    assert read == held and list(read.reasons) == ["z", "c"]
    broken = (b'{"names": ["a"]}', b'{"names": "ab", "reasons": {}}', b'{"names": ["a"], "reasons": [1]}', b"[]", b"{")
    for wrong in broken:
        with pytest.raises(ValueError, match="not a Held"):
            decode(Held, wrong)
    with pytest.raises(ValueError, match="FileTrace"):
        decode(FileTrace, b'{"file": "x"}')


def test_kept_traces_are_used_and_broken_ones_are_not(
    fixture_tree: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = TraceCache(tmp_path)
    first = trace_tree(fixture_tree, everything=True, cache=cache)
    kept = sorted((tmp_path / "files").rglob("*.json"))
    assert len(kept) >= len(first.files)
    n_traced: list[PurePosixPath] = []
    original = tracing.trace_source

    def counting(source: SourceFile) -> FileTrace:
        n_traced.append(source.path)
        return original(source)

    monkeypatch.setattr(tracing, "trace_source", counting)
    assert trace_tree(fixture_tree, everything=True, cache=TraceCache(tmp_path)) == first
    assert n_traced == []
    for place, junk in zip(kept, (b"", b"{", b"[1]", b"null", b"\xff"), strict=False):
        place.write_bytes(junk)
    assert trace_tree(fixture_tree, everything=True, cache=TraceCache(tmp_path)) == first
    assert 0 < len(n_traced) <= 5
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_cache_that_cannot_be_written_is_no_error(fixture_tree: SourceTree, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert trace_tree(fixture_tree, ["plain"], cache=TraceCache(tmp_path / "file")).n_unknown == 0


@pytest.mark.slow
def test_runs_side_by_side_and_a_killed_one(tmp_path: Path) -> None:
    """Four processes fill one cache, one of them is killed on the way; the rest say the same, and so does a fifth."""
    folder = FIXTURES / "tracer"
    environment = {**os.environ, "AUXTAP_CACHE": str(tmp_path)}
    (tmp_path / "source").mkdir()
    for path in folder.rglob("*.source.py"):
        place = tmp_path / "source" / path.relative_to(folder).with_name(path.name.replace(".source.py", ".py"))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "auxtap.cli", "trace", str(tmp_path / "source"), "--folder", "--json"]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe) for _ in range(4)]
    try:
        processes[0].wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        processes[0].kill()
    outputs = {process.communicate()[0] for process in processes[1:]}
    processes[0].communicate()
    last = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
    assert outputs == {last}


@pytest.mark.slow
@pytest.mark.network
def test_filters_and_options(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = run("pypi:0.5.9", "--role", "append,stage_exit", "--model", "llama")
    assert result.returncode == 0, result.stderr
    assert "aux_hidden_states.append(hidden_states + residual)" in result.stdout
    assert "layer_test" not in result.stdout
    assert not [line for line in result.stdout.split("\n") if line != line.rstrip()]
    result = run("pypi:0.5.9", "--hazards-only", "--json")
    report = json.loads(result.stdout)
    assert report["files"] == []
    assert len(report["hazards"]) > 8
    result = run("pypi:0.5.9", "--html", str(page))
    assert result.returncode == 0
    assert page.read_text().startswith("<!doctype html>")
    assert run("pypi:0.5.9", "--role", "apend").returncode == 2
    assert run("pypi:0.5.9", "--against", "pypi:0.5.8", "--html", str(page)).returncode == 2
    result = run("pypi:0.5.9", "--against", "pypi:0.5.8.post1", "--model", "llama")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("SGLang 0.5.9 against 0.5.8.post1")
