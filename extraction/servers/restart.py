"""Have a server that is gone started again by whoever keeps it running."""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from auxtap.core.keeping import ask_for_restart, is_kept


@dataclass(frozen=True)
class LostServer:
    """A server that is gone or stuck; `nonces` are those of the writers that it had, `spools` theirs."""

    url: str
    reason: str
    spools: tuple[Path, ...]
    nonces: frozenset[str]


class Keeper(Protocol):
    """Brings servers back that are gone: those that auxtap itself has started."""

    def restart(self, lost: LostServer) -> None:
        """Begin to start it again; called when it has gone, and again when that came to nothing.

        The calls come from a thread that the server has to itself.
        """

    def is_at_it(self, lost: LostServer) -> bool:
        """Tell whether it is worth waiting for."""


class SpoolKeeper:
    """Asks the `auxtap serve` that keeps a server, by way of its spool; where nobody does, nothing happens."""

    def restart(self, lost: LostServer) -> None:
        """Ask every keeper that the server has."""
        for spool in _kept(lost.spools):
            with contextlib.suppress(OSError):
                ask_for_restart(spool, lost.nonces, lost.reason)

    def is_at_it(self, lost: LostServer) -> bool:
        """Tell whether a keeper lives: it ends when it may not start the server again."""
        return bool(_kept(lost.spools))


def _kept(spools: Collection[Path]) -> list[Path]:
    return [spool for spool in spools if is_kept(spool)]
