"""The part of httpx that extraction uses, on the standard library, for nodes without httpx.

Only what `extraction/servers/client.py` calls is here, under httpx's names: one connection a thread, kept open between
requests, no proxies, no redirects.
"""

import contextlib
import http.client
import select
import threading
import urllib.parse
from collections.abc import Iterator, Mapping


class HTTPError(Exception):
    """No answer came."""


class InvalidURL(Exception):  # noqa: N818 - httpx's name
    """Not a URL."""


class TimeoutException(HTTPError):  # noqa: N818 - httpx's name
    """No answer came in time."""


class ReadTimeout(TimeoutException):
    """The answer stopped in the middle."""


class codes:  # noqa: N801 - httpx's name
    """The status codes that are told apart."""

    OK = 200
    REQUEST_TIMEOUT = 408
    TOO_MANY_REQUESTS = 429
    SERVICE_UNAVAILABLE = 503


class URL:
    """A URL's scheme and host."""

    def __init__(self, text: str) -> None:
        """Split `text`."""
        try:
            parts = urllib.parse.urlsplit(text)
            self.scheme, self.host, self.port = parts.scheme, parts.hostname or "", parts.port
        except ValueError as error:
            raise InvalidURL(str(error)) from None
        self.path = parts.path or "/"


class Limits:
    """Accepted and not needed: there is one connection a thread."""

    def __init__(self, **_: object) -> None:
        """Take anything."""


class Timeout:
    """Seconds for an answer, and for the connection."""

    def __init__(self, timeout: float, *, connect: float) -> None:
        """Keep both."""
        self.read = timeout
        self.connect = connect


class Response:
    """An answer whose body is still to be read."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        """Wrap the standard library's."""
        self._response = response
        self.status_code = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def iter_bytes(self) -> Iterator[bytes]:
        """Give the body in pieces."""
        with _translated():
            while block := self._response.read1(1 << 16):
                yield block


class Client:
    """One server's connections."""

    def __init__(self, **_: object) -> None:
        """Open nothing yet."""
        self._local = threading.local()
        self._all: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for connection in self._all:
                connection.close()

    @contextlib.contextmanager
    def stream(
        self, method: str, url: str, *, content: "bytes | None", headers: Mapping[str, str], timeout: Timeout
    ) -> Iterator[Response]:
        """Send a request and give the answer for the length of the block."""
        parsed = URL(url)
        connection = self._connection(parsed, timeout)
        try:
            with _translated():
                if connection.sock is None:
                    connection.timeout = timeout.connect
                    connection.connect()
                connection.sock.settimeout(timeout.read)
                connection.request(method, parsed.path, content, dict(headers))
                response = connection.getresponse()
            yield Response(response)
            with _translated():
                response.read()
        except BaseException:
            connection.close()
            raise

    def _connection(self, url: URL, timeout: Timeout) -> http.client.HTTPConnection:
        """Return this thread's connection, closed when the server has closed it meanwhile: nothing is sent twice."""
        connection: "http.client.HTTPConnection | None" = getattr(self._local, "connection", None)
        if connection is None:
            kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
            connection = kind(url.host, url.port, timeout=timeout.connect)
            self._local.connection = connection
            with self._lock:
                self._all.append(connection)
        elif connection.sock is not None and select.select([connection.sock], [], [], 0)[0]:
            connection.close()
        return connection


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Give the standard library's errors httpx's names."""
    try:
        yield
    except TimeoutError as error:
        raise ReadTimeout(str(error) or "timed out") from None
    except (OSError, http.client.HTTPException) as error:
        raise HTTPError(str(error) or type(error).__name__) from None
