"""Tell from the source whether a server of this tree would load auxtap's plugin, so that no patch is needed.

Seen from 0.5.11 on (srt/plugins/__init__.py `load_plugins`, called by managers/scheduler.py `run_scheduler_process`).
"""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tracer.report.trace_report import Evidence, Fact

GROUP = "sglang.srt.plugins"
KIND = "plugin"
_LOADER, _SCHEDULER = SRT_ROOT / "plugins/__init__.py", SRT_ROOT / "managers/scheduler.py"
_LOAD, _PROCESS = "load_plugins", "run_scheduler_process"


@dataclass(frozen=True)
class PluginWay:
    """Whether the plugin way is open, and the fact that says so in words, with the lines that show it."""

    state: Literal["open", "closed", "unknown"]
    fact: Fact


def find_plugin_way(tree: SourceTree) -> PluginWay:
    """Return whether servers of a tree load plugins."""
    loader, scheduler = tree.files.get(_LOADER), tree.files.get(_SCHEDULER)
    if loader is None or _LOAD.encode() not in loader:
        text = f"the plugin way is closed: nothing here loads plugins of {GROUP}, only a patch can capture"
        return PluginWay("closed", Fact(KIND, text))
    lines = [*_lines(loader, _group_line(loader)), *_lines(loader, _definition_line(loader, _LOAD))]
    evidence = [Evidence(_LOADER, line, _LOAD if code.startswith("def") else "", code) for line, code in lines]
    calls = _lines(scheduler or b"", _call_line(scheduler or b""))
    evidence += [Evidence(_SCHEDULER, line, _PROCESS, code) for line, code in calls]
    if len(evidence) != 3:
        text = f"the plugin way is unknown: {_PROCESS} is not seen to load plugins of {GROUP}"
        return PluginWay("unknown", Fact(KIND, text, tuple(evidence)))
    text = f"the plugin way is open: each scheduler process loads the plugins of {GROUP} (auxtap serve --plugin)"
    return PluginWay("open", Fact(KIND, text, tuple(evidence)))


def _lines(data: bytes, numbers: Iterator[int]) -> list[tuple[int, str]]:
    """Return the first of these lines with its text, or nothing."""
    texts = data.decode(errors="replace").split("\n")
    return [(number, texts[number - 1].strip()) for number in list(numbers)[:1]]


def _group_line(data: bytes) -> Iterator[int]:
    for node in _body(data):
        value = node.value if isinstance(node, ast.Assign) else None
        if isinstance(value, ast.Constant) and value.value == GROUP:
            yield node.lineno


def _definition_line(data: bytes, name: str) -> Iterator[int]:
    return (node.lineno for node in _body(data) if isinstance(node, ast.FunctionDef) and node.name == name)


def _call_line(data: bytes) -> Iterator[int]:
    if _LOAD.encode() not in data:
        return
    for function in _body(data):
        if isinstance(function, ast.FunctionDef) and function.name == _PROCESS:
            for statement in function.body:
                call = statement.value if isinstance(statement, ast.Expr) else None
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == _LOAD:
                    yield statement.lineno


def _body(data: bytes) -> list[ast.stmt]:
    with warnings.catch_warnings(action="ignore"):
        try:
            return ast.parse(data).body
        except (SyntaxError, ValueError, RecursionError):
            return []
