"""Notice a server that is stuck: its HTTP side may go on listening long after the process behind it has died.

Seen with SGLang 0.5.9: with its scheduler killed, the server takes requests and never answers them.
"""

import threading
import time
from collections.abc import Callable

POLL_S = 0.25


class Heartbeat:
    """Asks for the server's health once it has been quiet while requests are out, and reports when nothing helps."""

    def __init__(
        self,
        is_alive: Callable[[], bool],
        is_waiting: Callable[[], bool],
        report: Callable[[float], None],
        *,
        stall_s: float,
        quiet_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Call `report` with the seconds of silence when there was no sign of life for `stall_s`.

        Health is asked for after `quiet_s` (a quarter of `stall_s`, at most 10) without an answer.
        """
        self._is_alive = is_alive
        self._is_waiting = is_waiting
        self._report = report
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
            if not self._is_waiting():
                self.note_sign()
            elif self._clock() - self._last_sign >= self._quiet_s:
                if self._is_alive():
                    self.note_sign()
                elif self._clock() - self._last_sign >= self._stall_s and not self._stopped.is_set():
                    self._report(self._clock() - self._last_sign)
                    return
