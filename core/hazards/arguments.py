"""Find hazards in a command line before a server is started with it.

A server's parser takes options in several ways: `--option value`, `--option=value`, and any unambiguous beginning of
an option. All of them are seen here.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from auxtap.core.hazards.hazard_table import all_hazards
from auxtap.core.hazards.row import Hazard, Switch


@dataclass(frozen=True)
class GivenOption:
    """An option of a command line with its first value; `value` is None where it has none."""

    name: str
    value: str | None = None

    @property
    def words(self) -> str:
        """It as it stands on the command line."""
        return self.name if self.value is None else f"{self.name} {self.value}"


@dataclass(frozen=True)
class Refusal:
    """The options of a command line that bring a hazard about, each with the option that it is taken for."""

    given: tuple[GivenOption, ...]
    switches: tuple[Switch, ...]
    hazard: Hazard

    @property
    def words(self) -> str:
        """What is refused and why, without a verb before it."""
        named = [
            option.words if option.name in switch.options else f"{option.words} (taken for {switch.option})"
            for option, switch in zip(self.given, self.switches, strict=True)
        ]
        return f"{' together with '.join(named)} is refused: {self.hazard.reason}"


def split_options(arguments: Sequence[str]) -> tuple[GivenOption, ...]:
    """Return the options among `arguments`, underscores turned into dashes."""
    options: list[GivenOption] = []
    for position, argument in enumerate(arguments):
        if not argument.startswith("--"):
            continue
        name, has_value, joined = argument.partition("=")
        value: str | None = joined if has_value else None
        if not has_value and position + 1 < len(arguments) and not arguments[position + 1].startswith("--"):
            value = arguments[position + 1]
        options.append(GivenOption(name.replace("_", "-"), value))
    return tuple(options)


def may_stand_for(given: str, option: str) -> bool:
    """Tell whether a parser may take `given` for `option`: it is it, or a beginning of it."""
    return len(given) > len("--") and option.startswith(given)


def find_refusal(
    arguments: Sequence[str], *, prenorm: bool = False, rows: Iterable[Hazard] | None = None
) -> Refusal | None:
    """Return the first hazard that a command line brings about, None when there is none.

    `prenorm` says that the state before the final norm is wanted.
    """
    given = split_options(arguments)
    for row in all_hazards() if rows is None else rows:
        if row.prenorm and not prenorm:
            continue
        for group in row.refused:
            found = [_switching(given, switch) for switch in group]
            options = tuple(option for option in found if option is not None)
            if len(options) == len(group):
                return Refusal(options, group, row)
    return None


def _switching(given: Iterable[GivenOption], switch: Switch) -> GivenOption | None:
    """Return the option that brings about what `switch` says; of several with values each counts."""
    for option in given:
        if any(may_stand_for(option.name, known) for known in switch.options):
            value = "true" if option.value is None else option.value
            if switch.switches(_at(value, switch.key) if switch.key else value):
                return option
    return None


def _at(text: str, key: Sequence[str]) -> str:
    """Return what stands at a place of a JSON object, "none" where nothing does, the text itself where it is none."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        return text
    for name in key:
        value = value.get(name) if isinstance(value, dict) else None
    return str(value)
