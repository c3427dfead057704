"""What a row of the table of hazards says."""

import contextlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Switch:
    """A server argument, and the values of it that bring a hazard about.

    `spellings` are further options for it that some release has. `harmless` are the values that change nothing; where
    `only` names values, those alone matter. With `key` the value is the one at that place of a JSON object. Values are
    compared in lower case; an option that takes none counts as `true`.
    """

    argument: str
    spellings: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    key: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """The option on the command line."""
        return option_of(self.argument)

    @property
    def options(self) -> tuple[str, ...]:
        """Every option for it."""
        return (self.option, *self.spellings)

    @property
    def words(self) -> str:
        """The option with what matters of its value, as a person would write it."""
        value = ".".join(self.key) or "|".join(self.only)
        return f"{self.option} {value}".strip()

    def switches(self, value: str) -> bool:
        """Tell whether a value, as text, brings the hazard about."""
        text = value.strip().lower()
        with contextlib.suppress(ValueError):
            text = str(int(text))
        return text in self.only if self.only else text not in self.harmless


@dataclass(frozen=True)
class Needed:
    """A switch that a server must be started with where its release has it.

    `waived_by` is the option of `auxtap serve` that leaves it out; then the tap does not insist on it either.
    """

    argument: str
    waived_by: str = ""

    @property
    def option(self) -> str:
        """The option on the command line."""
        return option_of(self.argument)


@dataclass(frozen=True)
class Cleared:
    """A switch that the tap turns off when it is armed, in releases without the argument `unless`."""

    argument: str
    unless: str


@dataclass(frozen=True)
class Hazard:
    """One row: what goes wrong, what brings it about, and what is done.

    Each entry of `refused` is a set of settings that together bring it about; with `prenorm` only where the state
    before the final norm is wanted. `trigger` says when it happens, in words. `remedy` says what is done where that is
    not a matter of server arguments. The tracer finds it in the source by the finder of the same name, else by the
    definitions of its arguments.
    """

    name: str
    reason: str
    trigger: str
    refused: tuple[tuple[Switch, ...], ...] = ()
    needed: tuple[Needed, ...] = ()
    cleared: tuple[Cleared, ...] = ()
    prenorm: bool = False
    remedy: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Every server argument that it knows, in the order of the row."""
        refused = (switch.argument for group in self.refused for switch in group)
        found = (*refused, *(each.argument for each in self.needed), *(each.argument for each in self.cleared))
        return tuple(dict.fromkeys(found))


def option_of(argument: str) -> str:
    """Return the option for a server argument."""
    return "--" + argument.replace("_", "-")
