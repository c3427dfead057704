"""Keep what was made of sources, by a digest of what it was made from and of the code that made it.

Entries are published whole: a killed run leaves no half entry, runs side by side write the same, and an entry
that cannot be read counts as absent.
"""

import hashlib
import platform
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from auxtap.core import codec
from auxtap.core.codec import decode, encode
from auxtap.core.files import publish_bytes

T = TypeVar("T")


@dataclass(frozen=True)
class KeptEntries:
    """Entries below `folder`; with None nothing is kept.

    `package` is the folder of the modules that make the entries: a change of one of them, of how entries are written,
    of the interpreter or of `more` (a parser's version) makes every entry another.
    """

    folder: Path | None
    package: Path
    more: bytes = b""

    @cached_property
    def _code(self) -> bytes:
        digest = hashlib.sha256(f"python {platform.python_version()}\n".encode() + self.more)
        own = (Path(__file__), Path(codec.__file__))
        for path in (*sorted(self.package.rglob("*.py")), *own):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.digest()

    def read(self, group: str, made_from: bytes, kind: type[T]) -> T | None:
        """Return the entry that `made_from` gave, None where none is kept."""
        place = self._place(group, made_from)
        if place is None:
            return None
        try:
            return decode(kind, place.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None

    def write(self, group: str, made_from: bytes, value: object) -> None:
        """Keep an entry."""
        place = self._place(group, made_from)
        if place is None:
            return
        try:
            publish_bytes(place, encode(value))
        except OSError:
            # A full or read-only cache makes the next run slow, not this one wrong.
            return

    def _place(self, group: str, made_from: bytes) -> Path | None:
        if self.folder is None:
            return None
        digest = hashlib.sha256(self._code)
        digest.update(made_from)
        name = digest.hexdigest()
        return self.folder / group / name[:2] / f"{name}.json"
