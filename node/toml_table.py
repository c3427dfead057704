"""Read one TOML table with the types that are expected, and say where it is wrong."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from auxtap.core.errors import UsageError

T = TypeVar("T")
_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` was probably meant to be."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return found[0] if found else None


class Table:
    """One table of a profile; every key is taken once, and what is left over is refused by `close`."""

    def __init__(self, where: str, name: str, values: Mapping[str, Any]) -> None:
        """Read `values`; `where` is the file, `name` the table's, empty for the outermost."""
        self._where = where
        self._name = name
        self._values = dict(values)
        self._known: list[str] = []

    def error(self, key: str, what: str, hint: str | None = None) -> UsageError:
        """Return the error for a key of this table."""
        return UsageError(f"{self._where}: {self._full(key)} {what}", hint=hint)

    def table(self, key: str) -> "Table":
        """Return an inner table, empty when it is not there."""
        value = self._take(key, dict)
        return Table(self._where, self._full(key), value if value is not None else {})

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text that is not empty; without `default` it must be there."""
        value: str | None = self._take(key, str)
        if value is None:
            if default is None:
                raise self.error(key, "is missing")
            return default
        if not value.strip():
            raise self.error(key, "is empty")
        if any(ord(character) < 32 for character in value):
            raise self.error(key, "holds control characters")
        return value

    def optional_text(self, key: str) -> str | None:
        """Return a text, None when it is not there."""
        return self.text(key, "") or None

    def number(self, key: str, default: int, lowest: int, highest: int) -> int:
        """Return a whole number within bounds."""
        value = self._take(key, int)
        return int(self._bounded(key, default if value is None else value, lowest, highest))

    def seconds(self, key: str, default: float, highest: float = 86400.0) -> float:
        """Return a positive number of seconds."""
        value = self._take(key, float)
        return float(self._bounded(key, default if value is None else value, 0.1, highest))

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value."""
        value = self._take(key, bool)
        return default if value is None else bool(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, empty when it is not there."""
        value = self._take(key, list) or []
        for item in value:
            if not isinstance(item, str) or "\0" in item:
                raise self.error(key, f"holds {item!r}, which is no text", "write every argument in quotes")
        return tuple(value)

    def numbers(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers, empty when it is not there."""
        value = self._take(key, list) or []
        for item in value:
            if type(item) is not int:
                raise self.error(key, f"holds {item!r}, which is no whole number")
        return tuple(value)

    def environment(self, key: str) -> dict[str, str]:
        """Return a table of variables; numbers and truth values are taken as texts are."""
        table = self._take(key, dict) or {}
        variables = {}
        for name, value in table.items():
            if not name.isidentifier():
                raise self.error(key, f"holds {name!r}, which is no variable's name")
            if isinstance(value, bool) or not isinstance(value, str | int | float) or "\0" in str(value):
                raise self.error(f"{key}.{name}", "is neither a text nor a number", 'such as "1"')
            variables[name] = str(value)
        return variables

    def close(self) -> None:
        """Refuse what was not taken.

        Raises:
            UsageError: an unknown key; names the nearest known one.
        """
        for key in self._values:
            if key in self._known:
                continue
            meant = nearest(key, self._known)
            hint = f"did you mean {self._full(meant)}?" if meant else f"known here: {', '.join(self._known)}"
            raise UsageError(f"{self._where}: unknown key {self._full(key)}", hint=hint)

    def _take(self, key: str, kind: type) -> Any:
        self._known.append(key)
        value = self._values.get(key)
        if value is None:
            return None
        fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
        if not fits or (kind in (int, float) and isinstance(value, bool)):
            raise self.error(key, f"is {value!r}, not {_WORDS[kind]}")
        return value

    def _bounded(self, key: str, value: Any, lowest: float, highest: float) -> Any:
        if not lowest <= value <= highest:
            raise self.error(key, f"is {value}; it goes from {lowest} to {highest}")
        return value

    def _full(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key
