"""Put the documentation together: the pages of this folder, and those that are made from the code.

    python docs/pages.py OUT        write OUT/auxtap.1, and OUT/pages of which `make docs` makes the site
    python docs/pages.py --readme   bring the README's sentences about releases and the table of formats up to date
                                    (`make readme`)

Commands are
read from the command line itself, Python from signatures and docstrings, hazards from their table, releases from
`generated/`, licences from the packages that are installed: none of these pages can be out of date.
"""

import dataclasses
import importlib
import importlib.metadata
import inspect
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from auxtap import cli
from auxtap.commands import settings
from auxtap.core.hazards.hazard_table import all_hazards
from auxtap.core.hazards.row import Hazard, Switch
from auxtap.core.version import __version__
from auxtap.extraction.export.contract import ANY_NUMBER
from auxtap.extraction.export.trainer_formats import trainer_formats
from auxtap.tap.protocol import FINAL, FINAL_PRENORM

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
FINALS = {FINAL: "post-norm", FINAL_PRENORM: "pre-norm"}
# In reading order; pages that nobody lists here come after them.
ORDER = (
    "index.md",
    "tutorial.md",
    "how-capture-works.md",
    "guides/ways.md",
    "plugin.md",
    "guides/new-release.md",
    "guides/real-extraction.md",
    "datasets.md",
    "formats.md",
    "drafter.md",
    "configuration.md",
    "troubleshooting.md",
    "reference/commands.md",
    "reference/python.md",
    "reference/store.md",
    "reference/hazards.md",
    "trace-schema.md",
    "house.md",
    "upstream.md",
    "reference/releases.md",
    "reference/licences.md",
)
PUBLIC = (
    ("auxtap", ("open_source", "open_store")),
    ("auxtap.tree", ("OpenTree", "WrittenPatch")),
    ("auxtap.extraction.store.reader", ("StoreReader", "StoredSample")),
    ("auxtap.extraction.store.store_manifest", ("StoreManifest",)),
    ("auxtap.tracer.report.trace_report", ("TraceReport",)),
    ("auxtap.rewriters.patch.plan", ("CapturePlan",)),
    ("auxtap.core.errors", ("AuxtapError", "ExitCode")),
)


def command_page() -> str:
    """Return the reference of all commands, from the command line's own help."""
    lines = ["# Commands", "", "Made from the command line itself; `auxtap COMMAND --help` says the same.", ""]
    group: Any = typer.main.get_command(cli.app)
    for path, command in _commands(group, ()):
        lines += [f"## auxtap {' '.join(path)}", "", *_paragraphs(command.help or ""), ""]
        usage = " ".join([*path, *(p.make_metavar(_context(command, path)) for p in command.params if _is_argument(p))])
        lines += ["```", f"auxtap {usage} [OPTIONS]", "```", ""]
        options = [parameter for parameter in command.params if not _is_argument(parameter)]
        if options:
            lines += ["| option | | environment |", "| --- | --- | --- |"]
            lines += [_option_row(path, parameter, command) for parameter in options]
            lines += [""]
    return "\n".join(lines)


def man_page() -> str:
    """Return all commands as a manual page (`man ./auxtap.1`)."""
    group: Any = typer.main.get_command(cli.app)
    lines = [f'.TH AUXTAP 1 "" "auxtap {__version__}"', ".SH NAME", r"auxtap \- the auxiliary hidden states of SGLang"]
    lines += [".SH SYNOPSIS", ".B auxtap", "COMMAND [OPTIONS]", ".SH DESCRIPTION", _roff(group.help or "")]
    for path, command in _commands(group, ()):
        lines += [f'.SH "auxtap {" ".join(path)}"', _roff(" ".join(_paragraphs(command.help or "")))]
        for parameter in command.params:
            record = parameter.get_help_record(_context(command, path))
            if record is not None:
                lines += [".TP", rf"\fB{_roff(record[0])}\fR", _roff(record[1])]
    return "\n".join([*lines, ""])


def _roff(text: str) -> str:
    """Escape what roff would take for its own: backslashes, dashes, and a dot or quote that begins a line."""
    escaped = re.sub(r"\s+", " ", text.strip()).replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _commands(group: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in group.commands:
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from _commands(command, (*above, name))
        else:
            yield (*above, name), command


def _context(command: Any, path: tuple[str, ...]) -> Any:
    return command.context_class(command, info_name=" ".join(path))


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _option_row(path: tuple[str, ...], parameter: Any, command: Any) -> str:
    names, text = parameter.get_help_record(_context(command, path))
    key = settings.option_key(parameter)
    variable = f"`{settings.OptionPlace(path, key, parameter).variable}`" if key else ""
    return f"| `{_cell(names, code=True)}` | {_cell(text)} | {variable} |"


def _cell(text: str, *, code: bool = False) -> str:
    cell = re.sub(r"\s+", " ", text).replace("|", "\\|")
    return cell if code else cell.replace("<", "&lt;")


def _paragraphs(text: str) -> list[str]:
    return inspect.cleandoc(text.replace("\b", "")).split("\n")


def python_page() -> str:
    """Return the reference of the Python interface, from signatures and docstrings."""
    lines = ["# Python", "", "Stable names; what is not on this page may change at any time.", ""]
    for module_name, names in PUBLIC:
        module = importlib.import_module(module_name)
        for name in names:
            found = getattr(module, name)
            lines += _class_lines(found) if inspect.isclass(found) else _function_lines(found, f"auxtap.{name}", 2)
    return "\n".join(lines)


def _class_lines(found: Any) -> list[str]:
    lines = [f"## {found.__name__}", "", f"`{found.__module__}.{found.__name__}`", "", *_doc(found), ""]
    fields = [each for each in dataclasses.fields(found) if each.repr] if dataclasses.is_dataclass(found) else []
    if fields:
        shown = ", ".join(f"`{each.name}`: `{_annotation(each.type)}`" for each in fields)
        lines += [f"Fields: {shown}.", ""]
    for name, member in vars(found).items():
        documented = inspect.isfunction(member) or isinstance(member, property)
        if name.startswith("_") or not documented or name == "to_json":
            continue
        if isinstance(member, property):
            lines += [f"**`{name}`** - {' '.join(_doc(member))}", ""]
        else:
            lines += _function_lines(member, f"{found.__name__}.{name}", 3)
    return lines


def _function_lines(found: Any, name: str, level: int) -> list[str]:
    signature = re.sub(r"<function <lambda> at 0x[0-9a-f]+>", "...", str(inspect.signature(found)))
    signature = signature.replace("(self, ", "(").replace("(self)", "()")
    return [f"{'#' * level} {name}", "", "```python", f"{name}{signature}", "```", "", *_doc(found), ""]


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _doc(found: Any) -> list[str]:
    """Return a docstring, what it raises as a list."""
    lines: list[str] = []
    for line in (inspect.getdoc(found) or "").split("\n"):
        raised = re.fullmatch(r"    (\w+): (.+)", line)
        if line == "Raises:":
            lines += ["Raises:", ""]
        else:
            lines.append(f"- `{raised[1]}`: {raised[2]}" if raised else line.strip())
    return lines


def release_page() -> str:
    """Return the releases that have a committed patch, from the manifests."""
    lines = ["# Releases", "", summary(), ""]
    lines += ["| release | files | inserted lines | checks | proof |", "| --- | --- | --- | --- | --- |"]
    for manifest in _manifests():
        inserted = sum(len(entry["inserted_lines"]) for entry in manifest["files"])
        level = manifest["proof"].get("level", "static only")
        cells = (manifest["release"], len(manifest["files"]), inserted, len(manifest["checks"]), level)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])


def summary() -> str:
    """Return in a sentence or two how many releases there are, and how far each is proved."""
    manifests = _manifests()
    proved = [manifest["release"] for manifest in manifests if manifest["proof"].get("level") == "engine-proved"]
    rest = len(manifests) - len(proved)
    first, last = manifests[0]["release"], manifests[-1]["release"]
    patches = f"{len(manifests)} releases from {first} to {last} have a committed patch whose static checks all hold."
    if not proved:
        return f"{patches} None of them is engine-proved with its present code."
    return (
        f"{patches} {len(proved)} of them are engine-proved with that very patch ({', '.join(proved)}): real servers "
        f"were compared with transformers. The other {rest} are static only."
    )


def _manifests() -> list[dict[str, Any]]:
    found = [json.loads(path.read_bytes()) for path in (ROOT / "generated").glob("sglang-*/manifest.json")]
    return sorted(found, key=lambda manifest: _release_key(str(manifest["release"])))


def _release_key(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release))


def hazard_page() -> str:
    """Return the page of hazards: the table that report, manifest, `serve`, node and tap take their part from."""
    lines = [
        "# Hazards",
        "",
        "Configurations in which captured values are wrong or missing. `auxtap trace SOURCE --hazards-only` shows "
        "those of a tree with the lines of its source. What is *refused* is refused by `auxtap serve` (with `--node` "
        "too) before the model is loaded, however the option is written, and by the tap when the server starts; what "
        "is *needed*, `auxtap serve` adds and the tap insists on; what is *cleared*, the tap turns off. A release "
        "that lacks an argument has nothing of it.",
        "",
        "| hazard | what goes wrong | when | what is done |",
        "| --- | --- | --- | --- |",
    ]
    for row in all_hazards():
        cells = (row.name, row.reason, row.trigger, "; ".join(_measures(row)))
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _measures(row: Hazard) -> Iterator[str]:
    """Yield what is done about a hazard, in words."""
    refused = [" with ".join(_code(switch) for switch in group) for group in row.refused]
    if refused:
        only = " where the state before the final norm is wanted" if row.prenorm else ""
        yield f"refused: {', '.join(refused)}{only}"
    for each in row.needed:
        waived = f" (but for `auxtap serve {each.waived_by}`)" if each.waived_by else ""
        yield f"needed: `{each.option}`{waived}"
    for cleared in row.cleared:
        yield f"cleared: `{cleared.argument}`, where the release has no `{cleared.unless}`"
    if row.remedy:
        yield row.remedy


def _code(switch: Switch) -> str:
    options = " or ".join(f"`{option}`" for option in switch.options)
    value = ".".join(switch.key)
    value = f" `{value}`" if value else ""
    if switch.only:
        return f"{options}{value} {' or '.join(f'`{each}`' for each in switch.only)}"
    but = " or ".join(f"`{each}`" for each in switch.harmless if not switch.key or each != "none")
    return f"{options}{value} (but {but})" if but else f"{options}{value}"


def licence_page() -> str:
    """Return the licence of each package that auxtap needs, from what is installed."""
    lines = ["# Licences", "", "auxtap itself is Apache-2.0. What it needs, and what its extras bring:", ""]
    lines += ["| package | version | licence | for |", "| --- | --- | --- | --- |"]
    for name, extra in sorted(_needed()):
        try:
            metadata = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"| {name} | not installed here | - | {extra or 'always'} |")
            continue
        lines.append(f"| {name} | {metadata['Version']} | {_licence(metadata)} | {extra or 'always'} |")
    return "\n".join([*lines, ""])


def _needed() -> set[tuple[str, str]]:
    found = set()
    for requirement in importlib.metadata.requires("auxtap") or ():
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        if name is not None and name[0] != "auxtap":
            found.add((name[0], extra[1] if extra else ""))
    return found


def _licence(metadata: Any) -> str:
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classified = [each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier") or () if "License ::" in each]
    return ", ".join(classified) or str(metadata.get("License") or "unknown").partition("\n")[0]


def write_pages(out: Path) -> list[str]:
    """Write all pages and the configuration that lists them; return their paths in order."""
    pages = out / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(DOCS, pages, ignore=shutil.ignore_patterns("*.py", "mkdocs.yml", "__pycache__"))
    (pages / "reference").mkdir(exist_ok=True)
    made = {
        "commands": command_page(),
        "python": python_page(),
        "hazards": hazard_page(),
        "releases": release_page(),
        "licences": licence_page(),
    }
    for name, text in made.items():
        (pages / "reference" / f"{name}.md").write_text(text)
    there = {str(path.relative_to(pages)) for path in pages.rglob("*.md")}
    listed = [name for name in ORDER if name in there]
    listed += sorted(there - set(listed))
    nav = "".join(f"  - {json.dumps(name)}\n" for name in listed)
    (out / "auxtap.1").write_text(man_page())
    text = (DOCS / "mkdocs.yml").read_text()
    (out / "mkdocs.yml").write_text(f"{text}docs_dir: pages\nsite_dir: site\nnav:\n{nav}")
    return listed


def readme_with_summary(text: str) -> str:
    """Return the README with the sentences about releases as they are now."""
    wrapped = "\n".join(textwrap.wrap(summary(), 119, break_on_hyphens=False))
    between = re.compile(r"(?<=<!-- releases -->\n).*?(?=<!-- end of releases -->)", re.DOTALL)
    return between.sub(lambda _: f"{wrapped}\n", text)


def formats_with_table(text: str) -> str:
    """Return the page of formats with the table that the formats themselves give."""
    lines = ["| `--format` | files below `DIR` | tensors | layers | final state |", "| --- | --- | --- | --- | --- |"]
    for each in trainer_formats():
        layers = {ANY_NUMBER: "any", 0: "none"}.get(each.needs.n_layers, str(each.needs.n_layers))
        finals = (
            "all there are" if each.needs.all_finals else ", else ".join(map(FINALS.__getitem__, each.needs.finals))
        )
        lines.append(f"| `{each.name}` | {each.shown.files} | {each.shown.tensors} | {layers} | {finals} |")
    between = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
    return between.sub(lambda _: "\n".join([*lines, ""]), text)


if __name__ == "__main__":
    if sys.argv[1] == "--readme":
        readme, formats = ROOT / "README.md", DOCS / "formats.md"
        readme.write_text(readme_with_summary(readme.read_text()))
        formats.write_text(formats_with_table(formats.read_text()))
    else:
        write_pages(Path(sys.argv[1]))
