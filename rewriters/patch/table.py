"""The table of backbones that a patch carries: what the tap may arm, what it must refuse and why, and what the setters
of the model classes make of a draft model's ids.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from auxtap.core.source_tree import MODELS_ROOT
from auxtap.rewriters.places.insertion import Insertion
from auxtap.tracer.flow.setters import DraftSetter
from auxtap.tracer.report.readings import ModelReadings, Reading

BACKBONES_NAME = "backbones.py"
# The table that says why classes are not captured; the others say what is.
REFUSED_NAME = "REFUSED"
_HEAD = """\"\"\"Which backbones this patch captures, and how; written by auxtap from the tree it is for.\"\"\"

"""


def backbone_key(path: PurePosixPath, class_name: str) -> str:
    """Return the name of a backbone as the tap finds it: its module below models, and its class."""
    module = path.relative_to(MODELS_ROOT).with_suffix("")
    return f"{'.'.join(module.parts)}.{class_name}"


def backbone_table(read: ModelReadings, insertions: Sequence[Insertion], setters: Sequence[DraftSetter] = ()) -> bytes:
    """Return the table's module; the same readings, insertions and setters always give the same bytes."""
    staged = {(each.path, each.scope.partition(".")[0]) for each in insertions if each.kind == "stage"}
    looped = {(each.path, each.scope.partition(".")[0]) for each in insertions if each.kind == "loop"}
    natives, loops = read.usable("native"), read.usable("loop")
    captures = {_key(each): repr(_place(each) in staged) for each in natives}
    tapped = {_key(each): repr(_place(each) in staged) for each in loops if _place(each) in looped}
    refused = {
        _key(each): repr(f"write the patch with --model {each.file.stem}")
        for each in loops
        if _place(each) not in looped
    }
    refused |= {backbone_key(*place): repr(item.reason) for place, item in read.objections.items()}
    norms = {_key(each): repr(each.norm) for each in (*natives, *loops) if each.norm is not None}
    marks = {_key(each): repr(each.mark) for each in natives if each.mark}
    tables = {"CAPTURES": captures, "LOOPS": tapped, REFUSED_NAME: refused, "NORMS": norms, "MARKS": marks}
    tables["SETTERS"] = _setter_rows(setters)
    return (_HEAD + "".join(_table(name, entries) for name, entries in tables.items())).encode()


def _place(reading: Reading) -> tuple[PurePosixPath, str]:
    return reading.file, reading.class_name


def _key(reading: Reading) -> str:
    return backbone_key(*_place(reading))


def _setter_rows(setters: Sequence[DraftSetter]) -> dict[str, str]:
    rules: dict[str, dict[str, tuple[tuple[int | None, str | None], ...]]] = {}
    for setter in setters:
        of_class = rules.setdefault(backbone_key(setter.file, setter.model), {})
        of_class[setter.name] = tuple((rule.offset, rule.condition) for rule in setter.rules)
    return {key: repr(of_class) for key, of_class in rules.items()}


def _table(name: str, entries: Mapping[str, str]) -> str:
    lines = [f"    {key!r}: {entries[key]},\n" for key in sorted(entries)]
    return f"{name} = {{\n{''.join(lines)}}}\n" if lines else f"{name} = {{}}\n"
