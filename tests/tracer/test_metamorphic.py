"""Changes that must not matter, made by program to the real files, and changes that must be noticed."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath
from types import MappingProxyType

import libcst as cst
import libcst.matchers as m
import pytest

from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tests.tracer.releases import release_tree
from auxtap.tracer.report.entries import FileTrace
from auxtap.tracer.report.trace_report import Flow
from auxtap.tracer.sites.capture_points import CAPTURE_ROLES as CAPTURES
from auxtap.tracer.source.names import STAGE_NAMES, kind_of
from auxtap.tracer.tracing import trace_file, trace_tree

pytestmark = [pytest.mark.network, pytest.mark.slow]

FILES = [
    ("0.5.9", "models/deepseek_v2.py"),
    ("0.5.9", "models/qwen2_moe.py"),
    ("0.5.9", "layers/logits_processor.py"),
    ("0.5.23", "models/gpt_oss.py"),
    ("0.5.23", "models/kimi_linear.py"),
]
# Smaller ones, for what takes a parse of its own for each site.
SMALL_FILES = [("0.5.9", "models/qwen2_moe.py"), ("0.5.9", "layers/logits_processor.py"), ("0.5.23", "models/lfm2.py")]
# Local names whose meaning the tracer does not go by; words that rules look for stay as they are.
RENAMED = {"layer": "block", "val": "number", "i": "position", "num_layers": "depth_of_it", "layer_ids": "wanted"}


class Renamer(cst.CSTTransformer):
    """Rename locals: names that are no attribute, no keyword and no parameter's keyword at a call."""

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        return updated_node.with_changes(value=RENAMED.get(updated_node.value, updated_node.value))

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)


class Wrapper(cst.CSTTransformer):
    """Put spare parentheses around the arguments of calls and the tests of branches."""

    def visit_FormattedString(self, node: cst.FormattedString) -> bool:
        return False

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(value=wrapped(updated_node.value)) if not updated_node.star else updated_node

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If:
        test = wrapped(updated_node.test)
        return updated_node.with_changes(test=test, whitespace_before_test=cst.SimpleWhitespace(" "))


def wrapped(value: cst.BaseExpression) -> cst.BaseExpression:
    bare = isinstance(value, cst.GeneratorExp | cst.Yield | cst.StarredElement)
    line = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace("  "))
    if bare:
        return value
    return value.with_changes(
        lpar=[cst.LeftParen(whitespace_after=line), *value.lpar],
        rpar=[*value.rpar, cst.RightParen(whitespace_before=line)],
    )


def transform(transformer: cst.CSTTransformer) -> Callable[[str], str]:
    return lambda text: cst.parse_module(text).visit(transformer).code


def indent_more(text: str) -> str:
    return cst.parse_module(text).with_changes(default_indent=" " * 7).code


def comment_everywhere(text: str) -> str:
    """Add a comment that names the pipeline after every plain statement."""
    remark = cst.TrailingWhitespace(
        whitespace=cst.SimpleWhitespace("  "), comment=cst.Comment("# aux_hidden_states, is_last_rank")
    )

    class Remarks(cst.CSTTransformer):
        def leave_SimpleStatementLine(
            self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
        ) -> cst.SimpleStatementLine:
            return updated_node.with_changes(trailing_whitespace=remark)

    return cst.parse_module(text).visit(Remarks()).code


def reorder_methods(text: str) -> str:
    """Turn round the methods of each class."""

    class Reorder(cst.CSTTransformer):
        def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
            body = list(updated_node.body.body)
            places = [number for number, item in enumerate(body) if isinstance(item, cst.FunctionDef)]
            for place, item in zip(places, [body[number] for number in reversed(places)], strict=True):
                body[place] = item
            return updated_node.with_changes(body=updated_node.body.with_changes(body=body))

    return cst.parse_module(text).visit(Reorder()).code


CHANGES: dict[str, Callable[[str], str]] = {
    "rename": transform(Renamer()),
    "wrap": transform(Wrapper()),
    "indent": indent_more,
    "comment": comment_everywhere,
    "reorder": reorder_methods,
    "blank lines": lambda text: re.sub(r"\n(?=    def )", "\n\n\n", text),
}


def shape(trace: FileTrace) -> Counter[tuple[str, str, str]]:
    sites = [(site.role, site.name, site.scope) for site in trace.capture_sites]
    branches = [(branch.role, branch.test, branch.scope) for branch in trace.stage_branches]
    return Counter((*sites, *branches))


def source(release: str, name: str) -> tuple[PurePosixPath, str]:
    path = SRT_ROOT / name
    return path, release_tree(release).files[path].decode()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("release", "name"), FILES)
def test_roles_stay(release: str, name: str, change: str) -> None:
    path, text = source(release, name)
    changed = CHANGES[change](text)
    assert changed != text
    before, after = trace_file(path, text.encode()), trace_file(path, changed.encode())
    assert shape(after) == shape(before)
    if change not in ("rename", "reorder"):
        assert notes(after) == notes(before)


def notes(trace: FileTrace) -> list[str]:
    """Return what is said of captures, without the line numbers in it."""
    said = [site.note or "" for site in trace.capture_sites if site.role in CAPTURES]
    return [re.sub(r"\bline \d+", "line", note) for note in said]


def way(flow: Flow) -> tuple[object, ...]:
    return flow.model, tuple(link.name for link in flow.links), flow.setter, flow.breaks, flow.shift


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("release", "name"), [("0.5.9", "qwen2_moe"), ("0.5.23", "gpt_oss")])
def test_flows_stay(release: str, name: str, change: str) -> None:
    tree = release_tree(release)
    path, text = source(release, f"models/{name}.py")
    files = MappingProxyType({**tree.files, path: CHANGES[change](text).encode()})
    changed: SourceTree = replace(tree, files=files)
    before, after = trace_tree(tree, [name], num_layers=61), trace_tree(changed, [name], num_layers=61)
    assert [way(flow) for flow in after.flows] == [way(flow) for flow in before.flows]
    assert [Counter(step.kind for step in flow.steps) for flow in after.flows] == [
        Counter(step.kind for step in flow.steps) for flow in before.flows
    ]
    assert Counter(rule.resolved for rule in after.layer_rules) == Counter(rule.resolved for rule in before.layer_rules)


class Surgeon(cst.CSTTransformer):
    """Take away, or double, the first plain statement that holds a name of the pipeline and is a site of its own."""

    def __init__(self, number: int, *, double: bool) -> None:
        self.number, self.double, self.seen, self.done = number, double, 0, ""

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.BaseStatement]:
        names = m.findall(original_node, m.Name())
        held = [name.value for name in names if isinstance(name, cst.Name) and _is_ours(name.value)]
        if not held or m.findall(original_node, m.ImportFrom()):
            return updated_node
        self.seen += 1
        if self.seen != self.number:
            return updated_node
        self.done = held[0]
        if self.double:
            return cst.FlattenSentinel([updated_node, updated_node])
        return updated_node.with_changes(body=[cst.Pass()])


def _is_ours(name: str) -> bool:
    return kind_of(name) is not None or name in STAGE_NAMES


@pytest.mark.parametrize("double", [False, True], ids=["deleted", "doubled"])
@pytest.mark.parametrize(("release", "name"), SMALL_FILES)
def test_a_lost_or_doubled_site_is_noticed(release: str, name: str, double: bool) -> None:
    path, text = source(release, name)
    before = shape(trace_file(path, text.encode()))
    n_places, module = 0, cst.parse_module(text)
    for number in range(1, 200):
        surgeon = Surgeon(number, double=double)
        changed = module.visit(surgeon).code
        if not surgeon.done:
            break
        n_places += 1
        after = shape(trace_file(path, changed.encode()))
        difference = (after - before) if double else (before - after)
        assert difference, (number, surgeon.done)
    assert n_places > 3
