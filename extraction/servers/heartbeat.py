"""Notice a server that is stuck, and one that has come back.

A server's HTTP side may go on listening long after the process behind it has died. Seen with SGLang 0.5.9: with its
scheduler killed, the server takes requests and never answers them.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

POLL_S = 0.25
# How often a server that is gone is looked for.
LOOK_S = 1.0


class Watched(Protocol):
    """What a heartbeat needs of a server."""

    def is_alive(self) -> bool:
        """Ask for its health."""

    def is_waiting(self) -> bool:
        """Tell whether it has requests to answer."""

    def is_gone(self) -> bool:
        """Tell whether it is taken for gone."""

    def report_stall(self, seconds: float) -> None:
        """Hear that it gave no sign of life for so long."""

    def report_return(self) -> None:
        """Hear that it is there again."""


class Heartbeat:
    """Asks for a server's health once it has been quiet while requests are out, and looks for one that is gone."""

    def __init__(
        self,
        watched: Watched,
        *,
        stall_s: float,
        quiet_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Report a stall when there was no sign of life for `stall_s`.

        Health is asked for after `quiet_s` (a quarter of `stall_s`, at most 10) without an answer.
        """
        self._watched = watched
        self._stall_s = stall_s
        self._quiet_s = min(10.0, stall_s / 4) if quiet_s is None else quiet_s
        self._clock = clock
        self._last_sign = clock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()

    def note_sign(self) -> None:
        """Take an answer of the server as a sign of life."""
        self._last_sign = self._clock()

    def _watch(self) -> None:
        while not self._stopped.wait(POLL_S):
            if self._watched.is_gone():
                self._look_for_it()
            elif not self._watched.is_waiting():
                self.note_sign()
            elif self._clock() - self._last_sign >= self._quiet_s:
                self._ask()

    def _ask(self) -> None:
        if self._watched.is_alive():
            self.note_sign()
        elif self._clock() - self._last_sign >= self._stall_s and not self._stopped.is_set():
            self._watched.report_stall(self._clock() - self._last_sign)

    def _look_for_it(self) -> None:
        if self._stopped.wait(LOOK_S - POLL_S):
            return
        if self._watched.is_alive() and not self._stopped.is_set():
            self.note_sign()
            self._watched.report_return()
