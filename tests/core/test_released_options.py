"""The options of real releases, held against the table: every spelling is known, and no whole option is misread."""

import ast
import functools
from collections.abc import Iterator

import pytest

from auxtap.core.hazards.hazard_table import all_hazards
from auxtap.core.source_tree import SRT_ROOT
from auxtap.tests.core.hazard_readers import serve_says
from auxtap.tests.tracer.releases import release_tree

pytestmark = pytest.mark.network
# The first and the last, and those around which options changed their names or got further ones.
RELEASES = ("0.4.5", "0.5.2", "0.5.9", "0.5.13", "0.5.14", "0.5.15", "0.5.19", "0.5.20", "0.5.22", "0.5.23")
# A switch that older releases spell as an option of another argument, which it sets to what the row refuses.
ELSEWHERE = {
    "--enable-breakable-cuda-graph": "enable_breakable_cuda_graph",
    "--enforce-piecewise-cuda-graph": "enforce_piecewise_cuda_graph",
    "--enable-nsa-prefill-context-parallel": "enable_nsa_prefill_context_parallel",
    "--disable-piecewise-cuda-graph": "disable_piecewise_cuda_graph",
}
SWITCHES = {switch.argument: switch for row in all_hazards() for group in row.refused for switch in group}


@functools.cache
def options(release: str) -> tuple[tuple[str, str], ...]:
    """Return (option, server argument) of a release, as its source defines them."""
    found: list[tuple[str, str]] = []
    for path, data in release_tree(release).files.items():
        if path == SRT_ROOT / "server_args.py" or path.parent == SRT_ROOT / "arg_groups/fields":
            for node in ast.walk(ast.parse(data)):
                found += _added(node) if isinstance(node, ast.Call) else []
                found += _annotated(node) if isinstance(node, ast.AnnAssign) else []
    return tuple(found)


def _added(call: ast.Call) -> Iterator[tuple[str, str]]:
    names = _texts(call.args)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument" and names:
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        own = _texts([given["dest"]]) if "dest" in given else [names[0].lstrip("-").replace("-", "_")]
        yield from ((name, own[0]) for name in names)


def _annotated(field: ast.AnnAssign) -> Iterator[tuple[str, str]]:
    if not isinstance(field.annotation, ast.Subscript) or not isinstance(field.target, ast.Name):
        return
    calls = [node for node in ast.walk(field.annotation) if isinstance(node, ast.Call)]
    given = {keyword.arg: keyword.value for call in calls for keyword in call.keywords}
    if getattr(field.annotation.value, "id", "") == "A" and "no_cli" not in given:
        names = _texts([given["cli_name"]]) if "cli_name" in given else ["--" + field.target.id.replace("_", "-")]
        aliases = given.get("aliases")
        names += _texts(aliases.elts) if isinstance(aliases, ast.List) else []
        yield from ((name, field.target.id) for name in names)


def _texts(nodes: list[ast.expr]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


@pytest.mark.parametrize("release", RELEASES)
def test_every_spelling_of_a_refused_argument_is_in_its_row(release: str) -> None:
    known = {option: argument for argument, switch in SWITCHES.items() for option in switch.options}
    for option, argument in options(release):
        if argument in SWITCHES:
            assert known.get(option, ELSEWHERE.get(option)) in (argument, ELSEWHERE.get(option)), option


@pytest.mark.parametrize("release", RELEASES)
def test_no_whole_option_is_taken_for_another(release: str) -> None:
    """Beginnings of refused options are refused, so none of them may be an option of its own."""
    refused = {option for switch in SWITCHES.values() for option in switch.options}
    kept = {"--model-path", "--model", "--host", "--port", "--config", "--grpc-mode", "--smg-grpc-mode"}
    for option, _ in options(release):
        if option not in refused | kept:
            assert serve_says((option,)) == "", option
