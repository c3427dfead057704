"""Every reader of the table of hazards, asked about one setting: what tests of rows put to them."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from auxtap.core.errors import UsageError
from auxtap.core.hazards.row import Hazard, Switch
from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.node.flags import HazardFlag, final_flags
from auxtap.node.node_profile import NodeProfile, read_profile
from auxtap.rewriters.patch.hazards import Decision, decide_hazards, hazard_table
from auxtap.serving.profile import check_extra_arguments
from auxtap.tap import arming, hazards
from auxtap.tap.config import RefusedError, TapConfig
from auxtap.tests.shaped import shaped_tree
from auxtap.tracer.report.trace_report import Hazard as ReportedHazard
from auxtap.tracer.tracing import trace_tree

SERVER_ARGS = SRT_ROOT / "server_args.py"
PRENORM = "both"
_PROFILE = """
[ssh]
host = "gpu"
[node]
python = "/venv/bin/python"
sglang = "/opt/sglang"
[model]
path = "/models/kimi"
[storage]
spool = "/dev/shm/s"
store = "/data/store"
"""


def harmful(switch: Switch) -> str:
    """Return a value that switches it on, as it stands on a command line; nothing for an option that takes none."""
    value = switch.only[0] if switch.only else "2" if "0" in switch.harmless else "other"
    for name in reversed(switch.key):
        value = json.dumps({name: json.loads(value) if value.startswith("{") else value})
    return value if switch.only or switch.harmless else ""


def harmless(switch: Switch) -> list[str]:
    """Return values that do not."""
    if switch.key:
        return ["{}", json.dumps({switch.key[0]: {}}), json.dumps({"decode": {"backend": "full"}})]
    return list(switch.harmless) or [f"{value}0" for value in switch.only]


def spellings(switch: Switch, value: str) -> Iterator[tuple[str, ...]]:
    """Yield every way to give a setting: each option with a space, with =, with underscores and abbreviated."""
    for option in switch.options:
        short = option[:-1]
        if value:
            yield (option, value)
            yield (f"{option}={value}",)
            yield (short, value)
            yield (f"{short}={value}",)
        else:
            yield (option,)
            yield (short,)
        yield (option.replace("-", "_").replace("__", "--", 1), *([value] if value else []))


def given(switch: Switch, value: str) -> object:
    """Return the value as the server's argument holds it."""
    if switch.key:
        return json.loads(value)
    return True if not value else int(value) if value.isdigit() else value


def tree_with(*arguments: str) -> SourceTree:
    """Return the small tree, whose server has these arguments and no other."""
    fields = "".join(f"    {argument}: int = 0\n" for argument in arguments)
    return shaped_tree({SERVER_ARGS: f"class ServerArgs:\n    pass\n{fields}".encode()})


def decisions(*arguments: str) -> list[Decision]:
    """Return what the manifest says of a server with these arguments."""
    return list(decide_hazards(tree_with(*arguments)))


def reported(*arguments: str) -> dict[str, ReportedHazard]:
    """Return what the trace says of a server with these arguments."""
    return {hazard.name: hazard for hazard in trace_tree(tree_with(*arguments), ["llama"]).hazards}


def serve_says(words: tuple[str, ...]) -> str:
    """Return why `serve` refuses these words, or nothing."""
    try:
        check_extra_arguments(words, PRENORM)
    except UsageError as error:
        return error.message
    return ""


def node_says(tmp_path: Path, words: tuple[str, ...]) -> str:
    """Return why `serve --node` refuses these words, or nothing."""
    try:
        final_flags(node_profile(tmp_path), "/models/kimi", (HazardFlag("--needed", "h", "r"),), words, PRENORM)
    except UsageError as error:
        return error.message
    return ""


def node_profile(tmp_path: Path) -> NodeProfile:
    path = tmp_path / "mine.toml"
    path.write_text(_PROFILE)
    return read_profile(path)


def tap_says(monkeypatch: pytest.MonkeyPatch, **arguments: object) -> str:
    """Return why the tap refuses a server with these arguments, or nothing; its table is the one a patch carries."""
    written: dict[str, object] = {}
    exec(hazard_table(), written)
    for name in ("REFUSED", "NEEDED", "CLEARED"):
        monkeypatch.setattr(hazards, name, written[name])
    config = TapConfig.from_environment({"AUXTAP_LAYERS": "2", "AUXTAP_FINAL": PRENORM})
    try:
        arming.check_settings(SimpleNamespace(**arguments), config)
    except RefusedError as error:
        return str(error)
    return ""


def check_every_reader(row: Hazard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold every reader against a row: each refuses what it refuses, and takes what changes nothing."""
    for group in row.refused:
        names = [switch.argument for switch in group]
        assert Decision(row.name, "refused", tuple(switch.words for switch in group), row.reason) in decisions(*names)
        on = {switch.argument: given(switch, harmful(switch)) for switch in group}
        assert row.reason in tap_says(monkeypatch, **on)
        rest = tuple(word for switch in group[1:] for word in next(iter(spellings(switch, harmful(switch)))) if word)
        for words in spellings(group[0], harmful(group[0])):
            assert row.reason in serve_says((*words, *rest)), words
            assert row.reason in node_says(tmp_path, (*words, *rest)), words
        for value in harmless(group[0]):
            words = (group[0].option, value, *rest)
            assert serve_says(words) == node_says(tmp_path, words) == "", words
            assert tap_says(monkeypatch, **{**on, names[0]: given(group[0], value)}) == "", words
    for needed in row.needed:
        assert Decision(row.name, "flag", (needed.option,), row.reason) in decisions(needed.argument)
        said = tap_says(monkeypatch, **{needed.argument: False})
        assert said == "" if needed.waived_by else row.reason in said
        assert tap_says(monkeypatch, **{needed.argument: True}) == ""
    for cleared in row.cleared:
        found = {(each.hazard, each.verdict) for each in decisions(cleared.argument)}
        assert (row.name, "repaired") in found
        assert (row.name, "repaired") not in {
            (each.hazard, each.verdict) for each in decisions(cleared.argument, cleared.unless)
        }
