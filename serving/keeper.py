"""Keep a server running: started again when it dies, and when an extractor finds it gone."""

import contextlib
import time
from collections.abc import Callable

from auxtap.core.errors import ServerError
from auxtap.core.keeping import keeping, take_request
from auxtap.serving.server import WatchedServer, be_silent, died

POLL_S = 0.2
# Before each further start; a server that dies at once would otherwise use all of them up in no time.
PAUSE_S = 2.0

Progress = Callable[[str], None]


class Keeper:
    """Watches one server that is ready, and starts it again at most `restarts` times."""

    def __init__(
        self,
        server: WatchedServer,
        *,
        restarts: int,
        timeout_s: float,
        progress: Progress = be_silent,
        pause_s: float = PAUSE_S,
    ) -> None:
        """Prepare; a start must be ready within `timeout_s`."""
        self._server = server
        self._restarts = restarts
        self._timeout_s = timeout_s
        self._progress = progress
        self._pause_s = pause_s

    def keep(self) -> ServerError:
        """Keep the server running until it may not be started again; return what ended it last.

        The spool says that the server is kept for as long as another start is left.
        """
        with contextlib.ExitStack() as announced:
            if self._restarts and self._server.spec.spool is not None:
                announced.enter_context(keeping(self._server.spec.spool))
            trouble = self._wait_for_trouble()
            for number in range(1, self._restarts + 1):
                self._progress(f"{trouble.message}; starting it again ({number} of {self._restarts})")
                failure = self._start_again(number)
                if failure is not None:
                    trouble = failure
                    continue
                if number == self._restarts:
                    announced.close()
                    return self._server.wait_ended()
                trouble = self._wait_for_trouble()
            return trouble

    def _wait_for_trouble(self) -> ServerError:
        """Wait until the server ends by itself or an extractor asks for another start."""
        server = self._server
        while True:
            status = server.poll()
            if status is not None:
                return died(status, server.log)
            request = take_request(server.spec.spool) if self._restarts and server.spec.spool is not None else None
            if request is not None:
                return ServerError(f"an extractor finds the server {request.reason}")
            time.sleep(POLL_S)

    def _start_again(self, number: int) -> ServerError | None:
        """Start the server once more; return why it did not become ready."""
        server = self._server
        server.stop()
        time.sleep(self._pause_s)
        log = server.spec.log
        with contextlib.suppress(OSError):
            log.replace(log.with_name(f"{log.stem}.{number}{log.suffix}"))
        try:
            server.start()
            seconds = server.wait_ready(timeout_s=self._timeout_s, progress=self._progress)
        except ServerError as error:
            return error
        self._progress(f"the server is ready again after {seconds:.0f} s; the log of the one before is kept beside it")
        return None
