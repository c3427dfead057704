"""The documentation says what there is: every command that it shows is one, every link leads somewhere."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

from auxtap import cli
from auxtap.commands.menu import MENU
from auxtap.core.hazards.hazard_table import all_hazards
from auxtap.extraction.export.trainer_formats import format_names
from auxtap.tests.docs.conftest import ROOT, shown_commands

COMMANDS = sorted(set(shown_commands()))


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 45
    assert {page for page, _ in COMMANDS} >= {"README.md", "docs/tutorial.md", "docs/guides/real-extraction.md"}


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_that_is_shown_can_be_called(page: str, line: str) -> None:
    """It is parsed as the command line parses it, and not run."""
    words = shlex.split(line.partition(" > ")[0].replace("...", ""))
    command: Any = typer.main.get_command(cli.app)
    arguments = words[1:]
    context = None
    names = ["auxtap"]
    while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        assert arguments[0] in command.commands, f"{page}: {line}"
        context = command.context_class(command, info_name=names[-1], parent=context)
        names.append(arguments[0])
        command, arguments = command.commands[arguments[0]], arguments[1:]
    if hasattr(command, "commands"):
        assert arguments[0] in ("--help", "--install-completion", "--version"), f"{page}: {line}"
        return
    command.make_context(names[-1], arguments, parent=context)


def test_every_page_is_listed_and_every_link_leads_somewhere(pages: ModuleType, tmp_path: Path) -> None:
    listed = pages.write_pages(tmp_path)
    folder = tmp_path / "pages"
    assert sorted(listed) == sorted(str(path.relative_to(folder)) for path in folder.rglob("*.md"))
    assert listed[:2] == ["index.md", "tutorial.md"]
    for name in listed:
        text = re.sub(r"```.*?```", "", (folder / name).read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target:
                assert (folder / name).parent.joinpath(target).exists(), f"{name}: {target}"
    configuration = (tmp_path / "mkdocs.yml").read_text()
    assert all(f'  - "{name}"\n' in configuration for name in listed)


def test_the_page_of_hazards_holds_the_whole_table(pages: ModuleType) -> None:
    text = pages.hazard_page()
    for row in all_hazards():
        (line,) = (line for line in text.splitlines() if line.startswith(f"| {row.name} |"))
        assert row.reason in line
        for option in (option for group in row.refused for switch in group for option in switch.options):
            assert f"`{option}`" in line
        assert all(f"`{needed.option}`" in line for needed in row.needed)


def test_the_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    for target in re.findall(r"\]\(([^)#\s]+)\)", text):
        assert "://" in target or (ROOT / target).exists(), target


def test_every_command_and_option_has_its_entry(pages: ModuleType) -> None:
    page = pages.command_page()
    group: Any = typer.main.get_command(cli.app)
    for name in MENU:
        command = group.commands[name]
        for inner in getattr(command, "commands", {"": command}):
            assert f"\n## auxtap {f'{name} {inner}'.strip()}\n" in page
    assert "| `--port &lt;int range>`" not in page and "`AUXTAP_SERVE_PORT`" in page


def test_python_has_its_entries(pages: ModuleType) -> None:
    page = pages.python_page()
    for name in ("auxtap.open_source", "auxtap.open_store", "OpenTree.patch", "StoreReader.torch_dataset"):
        assert re.search(rf"^#+ {re.escape(name)}$", page, re.MULTILINE), name
    assert " at 0x" not in page and "- `SourceError`: " in page


def test_licences_are_named(pages: ModuleType) -> None:
    page = pages.licence_page()
    for name in ("typer", "libcst", "safetensors", "numpy"):
        assert re.search(rf"^\| {name} \| [\w.]+ \| [^|]*\w[^|]* \| always \|$", page, re.MULTILINE), name
    assert "unknown" not in page


def test_the_readme_says_what_generated_holds(pages: ModuleType) -> None:
    """`make readme` brings it up to date."""
    text = (ROOT / "README.md").read_text()
    assert pages.readme_with_summary(text) == text
    assert pages.summary().split()[0] in text


def test_the_page_of_formats_says_what_the_formats_say(pages: ModuleType) -> None:
    """`make readme` brings it up to date, too."""
    text = (ROOT / "docs/formats.md").read_text()
    assert pages.formats_with_table(text) == text
    assert all(f"| `{name}` |" in text for name in format_names())


def test_the_manual_page_has_every_command(pages: ModuleType) -> None:
    lines = pages.man_page().splitlines()
    group: Any = typer.main.get_command(cli.app)
    for name in MENU:
        for inner in getattr(group.commands[name], "commands", {"": None}):
            assert f'.SH "auxtap {f"{name} {inner}".strip()}"' in lines
    requests = {line.split()[0] for line in lines if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".B", ".TP"}


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_manual_page_is_one(pages: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "auxtap.1"
    path.write_text(pages.man_page())
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
