"""What is decided in a given tree about the settings under which captured values are wrong or missing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from auxtap.core.hazards.hazard_table import all_hazards
from auxtap.core.hazards.row import Hazard
from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.rewriters.places.syntax import annotated_fields

HAZARDS_NAME = "hazards.py"
SERVER_ARGS = SRT_ROOT / "server_args.py"
_FIELD_GROUPS = SRT_ROOT / "arg_groups/fields"
_HEAD = '''"""Settings under which states would be wrong or missing; written by auxtap from its table of hazards."""

'''
Verdict = Literal["repaired", "flag", "refused"]


@dataclass(frozen=True)
class Decision:
    """What is done about one hazard.

    `repaired`: the tap changes the setting itself when it is armed. `flag`: the server must be started with
    `flags`. `refused`: `flags`, or `flags` with a value, are refused by `serve`, and by the tap at start. `reason` says
    what would go wrong.
    """

    hazard: str
    verdict: Verdict
    flags: tuple[str, ...]
    reason: str


def decide_hazards(tree: SourceTree) -> tuple[Decision, ...]:
    """Return a decision for every hazard that the tree's server arguments make possible, in the table's order."""
    fields = argument_fields(tree)
    return tuple(decision for row in all_hazards() for decision in _decide(row, fields))


def _decide(row: Hazard, fields: frozenset[str]) -> Iterator[Decision]:
    for cleared in row.cleared:
        if cleared.argument in fields and cleared.unless not in fields:
            yield Decision(row.name, "repaired", (), f"{row.reason}; arming clears {cleared.argument}")
    for needed in row.needed:
        if needed.argument in fields:
            yield Decision(row.name, "flag", (needed.option,), row.reason)
    for group in row.refused:
        if all(switch.argument in fields for switch in group):
            yield Decision(row.name, "refused", tuple(switch.words for switch in group), row.reason)


def argument_fields(tree: SourceTree) -> frozenset[str]:
    """Return the names of the server arguments; from 0.5.20 on the class is put together from groups of fields."""
    own = annotated_fields(tree.files.get(SERVER_ARGS, b""), "ServerArgs")
    grouped = [annotated_fields(data) for path, data in tree.files.items() if path.parent == _FIELD_GROUPS]
    return own.union(*grouped)


def hazard_table() -> bytes:
    """Return the module that the tap reads: of every row what concerns a server that is starting.

    It is the same for every release: an argument that a server does not have is no hazard there.
    """
    rows = all_hazards()
    refused = [
        (
            row.reason,
            row.prenorm,
            tuple((switch.argument, switch.key, switch.only, switch.harmless) for switch in group),
        )
        for row in rows
        for group in row.refused
    ]
    needed = [(each.argument, row.reason) for row in rows for each in row.needed if not each.waived_by]
    cleared = [(each.argument, each.unless) for row in rows for each in row.cleared]
    tables = (("REFUSED", refused), ("NEEDED", needed), ("CLEARED", cleared))
    return (_HEAD + "".join(_constant(name, entries) for name, entries in tables)).encode()


def _constant(name: str, entries: Sequence[tuple[object, ...]]) -> str:
    lines: list[str] = []
    for entry in entries:
        lines += ["    (", *(f"        {part!r}," for part in entry), "    ),"]
    return "\n".join((f"{name} = (", *lines, ")\n"))
