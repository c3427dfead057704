"""The table of backbones that a patch carries: what the tap may arm, and what it must refuse and why."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from auxtap.core.source_tree import MODELS_ROOT
from auxtap.rewriters.backbones.surveys import ModelFile
from auxtap.rewriters.places.insertion import Insertion

BACKBONES_NAME = "backbones.py"
# The table that says why classes are not captured; the others say what is.
REFUSED_NAME = "REFUSED"
_HEAD = """\"\"\"Which backbones this patch captures, and how; written by auxtap from the tree it is for.\"\"\"

"""


def backbone_key(path: PurePosixPath, class_name: str) -> str:
    """Return the name of a backbone as the tap finds it: its module below models, and its class."""
    module = path.relative_to(MODELS_ROOT).with_suffix("")
    return f"{'.'.join(module.parts)}.{class_name}"


def backbone_table(files: Sequence[ModelFile], insertions: Sequence[Insertion]) -> bytes:
    """Return the table's module; the same files and insertions always give the same bytes."""
    staged = {(each.path, each.scope.partition(".")[0]) for each in insertions if each.kind == "stage"}
    looped = {(each.path, each.scope.partition(".")[0]) for each in insertions if each.kind == "loop"}
    captures: dict[str, str] = {}
    loops: dict[str, str] = {}
    refused: dict[str, str] = {}
    norms: dict[str, str] = {}
    for file in files:
        path, survey = file.path, file.survey
        for capture in survey.captures:
            place = path, capture.class_name
            captures[backbone_key(*place)] = repr(place in staged)
        for loop in survey.loops:
            place = path, loop.plain.class_name
            if place in looped:
                loops[backbone_key(*place)] = repr(place in staged)
            else:
                refused[backbone_key(*place)] = repr(f"write the patch with --model {path.stem}")
        norms |= {backbone_key(path, name): repr(norm) for name, norm in survey.norms.items()}
        refused |= {backbone_key(path, name): repr(reason) for name, reason in survey.refused.items()}
    tables = {"CAPTURES": captures, "LOOPS": loops, REFUSED_NAME: refused, "NORMS": norms}
    return (_HEAD + "".join(_table(name, entries) for name, entries in tables.items())).encode()


def _table(name: str, entries: Mapping[str, str]) -> str:
    lines = [f"    {key!r}: {entries[key]},\n" for key in sorted(entries)]
    return f"{name} = {{\n{''.join(lines)}}}\n" if lines else f"{name} = {{}}\n"
