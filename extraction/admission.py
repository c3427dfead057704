"""Bound what is on its way: requests, and their bytes in the spool."""

import threading


class Admission:
    """At most `max_requests` at a time, whose parts together take at most `max_bytes` of the spool."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        """Begin with nothing on its way."""
        self.max_bytes = max_bytes
        self._max_requests = max_requests
        self._changed = threading.Condition()
        self._n_requests = 0
        self._n_bytes = 0

    @property
    def n_requests(self) -> int:
        """Requests that are on their way."""
        return self._n_requests

    @property
    def n_bytes(self) -> int:
        """Bytes that they take, or will take, in the spool."""
        return self._n_bytes

    def acquire(self, n_bytes: int, timeout_s: float) -> bool:
        """Take room for one request, waiting up to `timeout_s` for it; tell whether it was had."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._fits(n_bytes), timeout_s):
                return False
            self._n_requests += 1
            self._n_bytes += n_bytes
            return True

    def release(self, n_bytes: int) -> None:
        """Give the room of one request back."""
        with self._changed:
            self._n_requests -= 1
            self._n_bytes -= n_bytes
            self._changed.notify_all()

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` until nothing is on its way; tell whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: self._n_requests == 0, timeout_s)

    def _fits(self, n_bytes: int) -> bool:
        return self._n_requests < self._max_requests and self._n_bytes + n_bytes <= self.max_bytes
