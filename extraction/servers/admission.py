"""Bound what is on its way through one server: requests, and their bytes in the spool."""

import threading


class Admission:
    """At most `max_requests` at a time; what they, and the parts not yet drained, take is at most `max_bytes`."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        """Begin with nothing on its way."""
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._n_requests = 0
        self._n_tokens = 0
        self._n_bytes = 0
        self._peak_bytes = 0

    @property
    def n_requests(self) -> int:
        """Requests that the server has not answered yet."""
        return self._n_requests

    @property
    def n_tokens(self) -> int:
        """Tokens of those requests."""
        return self._n_tokens

    @property
    def n_bytes(self) -> int:
        """Bytes that are taken, or will be, in the spool."""
        return self._n_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that were ever taken."""
        return self._peak_bytes

    def fits(self, n_bytes: int) -> bool:
        """Tell whether there is room for one more request of that size."""
        return self._n_requests < self.max_requests and self._n_bytes + n_bytes <= self.max_bytes

    def admit(self, n_bytes: int, n_tokens: int) -> bool:
        """Take room for one request; tell whether there was any."""
        with self._lock:
            if not self.fits(n_bytes):
                return False
            self._n_requests += 1
            self._n_tokens += n_tokens
            self._n_bytes += n_bytes
            self._peak_bytes = max(self._peak_bytes, self._n_bytes)
            return True

    def end_request(self, n_tokens: int) -> None:
        """Note that a request was answered; its bytes stay taken."""
        with self._lock:
            self._n_requests -= 1
            self._n_tokens -= n_tokens

    def free(self, n_bytes: int) -> None:
        """Give bytes back: they are drained, or were never written."""
        with self._lock:
            self._n_bytes -= n_bytes
