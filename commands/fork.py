"""The names of a fork's own capture code, which `[[fork.capture]]` of `auxtap.toml` adds to those of SGLang."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from auxtap.commands.context import FORK_TABLE
from auxtap.core.errors import UsageError

_LIST = "capture"
# What a person calls it -> what the tracer does: `Kind` of tracer/source/names.py, by name.
_KEYS = {"accumulators": "STATES", "setters": "SETTER", "layer_lists": "LAYERS", "flags": "FLAG"}
# Shorter names stand everywhere.
_SHORTEST = 4
_HEADER = re.compile(r"\s*\[\[\s*fork\s*\.\s*capture\s*\]\]")
_HINT = 'such as\n[[fork.capture]]\naccumulators = ["tapped_states"]\nlayer_lists = ["tapped_layers"]'


def read_fork(path: Path, text: str, value: object) -> Mapping[str, str]:
    """Return the added names, each with its kind; `value` is the table `fork` of a file that reads `text`.

    Raises:
        UsageError: there is a key that means nothing, or a name that cannot be one; the message has its line.
    """
    entries = value.get(_LIST) if isinstance(value, dict) else None
    if not isinstance(value, dict) or set(value) - {_LIST} or not isinstance(entries, list):
        odd = sorted(set(value) - {_LIST}) if isinstance(value, dict) else []
        what = f"fork.{odd[0]} is not known" if odd else "fork holds no list of tables"
        raise UsageError(f"{path}:{_line(text, odd[0] if odd else FORK_TABLE)}: {what}", hint=_HINT)
    names: dict[str, str] = {}
    for number, entry in enumerate(entries):
        for key, given in _items(path, text, number, entry):
            where = f"{path}:{_line(text, key, number)}"
            if key not in _KEYS:
                raise UsageError(f"{where}: fork.capture.{key} is not known", hint=f"it knows {', '.join(_KEYS)}")
            for name in _names(where, key, given):
                if names.setdefault(name, _KEYS[key]) != _KEYS[key]:
                    raise UsageError(f"{where}: {name} is given as two things", hint="a name means one thing")
    return names


def _items(path: Path, text: str, number: int, entry: object) -> list[tuple[str, object]]:
    if not isinstance(entry, dict) or not entry:
        raise UsageError(f"{path}:{_line(text, FORK_TABLE, number)}: fork.capture holds an empty table", hint=_HINT)
    return list(entry.items())


def _names(where: str, key: str, given: object) -> list[str]:
    names = [str(name) for name in given if _is_name(name)] if isinstance(given, list) else []
    if not isinstance(given, list) or not names or len(names) != len(given):
        raise UsageError(f"{where}: fork.capture.{key} is a list of names, not {given!r}", hint=_HINT)
    for name in names:
        if len(name) < _SHORTEST:
            raise UsageError(f"{where}: {name} is too short a name to be looked for", hint="name it in full")
    return names


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier() and value.isascii()


def _line(text: str, key: str, number: int | None = None) -> int:
    """Return the line on which a key stands, in the table of that number where there are several; 1 where in none."""
    tables = -1
    spelled = re.compile(rf"\s*\[*\s*(?:fork\s*\.\s*)?[\"']?{re.escape(key)}[\"']?\s*(?:[=.\]]|$)")
    first = 1
    for line_number, line in enumerate(text.split("\n"), 1):
        if _HEADER.match(line):
            tables += 1
            first = line_number if tables == number else first
        if spelled.match(line) and (number is None or tables == number):
            return line_number
    return first


def use_fork(names: Mapping[str, str]) -> None:
    """Have the tracer know these names; none but SGLang's when there are none."""
    if not names and "auxtap.tracer.source.names" not in sys.modules:
        return
    from auxtap.tracer.source.names import Kind, add_names

    add_names({name: Kind[kind] for name, kind in names.items()})
