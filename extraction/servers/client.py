"""Speak to the server; whatever it answers is untrusted and bounded."""

import contextlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx

from auxtap.core.errors import ServerError, UsageError
from auxtap.extraction.spool.untrusted import printable

_MAX_ANSWER_BYTES = 1 << 20
_MAX_INFO_BYTES = 16 << 20
_INFO_TIMEOUT_S = 30.0
_ABORT_TIMEOUT_S = 2.0
_MAX_RETRY_AFTER_S = 30.0
_MAX_ARGUMENT_CHARS = 1000
_SECRET_WORDS = ("api_key", "password", "secret", "credential", "auth", "hf_token", "access_token", "cert", "keyfile")
# Server arguments that differ from start to start and say nothing of the states.
_VOLATILE = frozenset(
    {"internal_states", "port", "host", "nccl_port", "random_seed", "dist_init_addr", "status", "uptime"}
)


@dataclass(frozen=True)
class Answered:
    """The server took the request and ended it."""


@dataclass(frozen=True)
class Declined:
    """The server will never take this request."""

    reason: str


@dataclass(frozen=True)
class Unanswered:
    """The request may succeed another time.

    `unreachable` when there was no HTTP answer at all, `lingering` when the server may still be at it.
    """

    reason: str
    unreachable: bool = False
    retry_after_s: float = 0.0
    lingering: bool = False


Answer = Answered | Declined | Unanswered


@dataclass(frozen=True)
class ServerInfo:
    """What the server says of itself; `longest_prompt` in tokens, None when it does not say."""

    model_path: str
    longest_prompt: int | None
    arguments: Mapping[str, Any] = field(hash=False)


class AnswerTooLongError(Exception):
    """More came than any answer needs."""


class ServerClient:
    """One server's HTTP API; used by several threads at once."""

    def __init__(self, url: str, *, connections: int, timeout_s: float) -> None:
        """Prepare for `url`; nothing is sent yet.

        Raises:
            UsageError: it is no http or https URL.
        """
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise UsageError(f"not a URL: {url!r} ({error})", hint="such as http://127.0.0.1:30000") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise UsageError(f"not an http URL: {url!r}", hint="such as --server http://127.0.0.1:30000")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._connections = connections
        self._http = self._open()

    def _open(self) -> httpx.Client:
        connections = self._connections
        limits = httpx.Limits(max_connections=connections + 4, max_keepalive_connections=connections + 4)
        # No proxy from the environment: the server is this machine's, or reached through a tunnel.
        return httpx.Client(limits=limits, trust_env=False, follow_redirects=False)

    def __enter__(self) -> "ServerClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def renew(self) -> None:
        """Begin with new connections; requests that hang in the old ones are left to themselves."""
        self._http = self._open()

    def abort(self, rid: str) -> None:
        """Ask the server to drop a request that was given up; whether it does makes no difference to us."""
        content = json.dumps({"rid": rid}).encode()
        with contextlib.suppress(httpx.HTTPError, AnswerTooLongError):
            self._exchange("POST", "/abort_request", content, _MAX_ANSWER_BYTES, _ABORT_TIMEOUT_S)

    def read_info(self) -> ServerInfo:
        """Ask what is served and how.

        Raises:
            ServerError: the server cannot be reached or is no SGLang.
        """
        model = self._read_json("/get_model_info", "/model_info")
        server = self._read_json("/get_server_info", "/server_info")
        limit = server.get("max_req_input_len")
        # SGLang refuses a prompt of that length already (0.5.9 managers/utils.py, validate_input_length).
        longest = limit - 1 if type(limit) is int and limit > 1 else None
        model_path = model.get("model_path")
        return ServerInfo(model_path if isinstance(model_path, str) else "", longest, clean_arguments(server))

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post `body` and return the JSON that comes back, None where it is none.

        Raises:
            ServerError: no answer, another status than 200, or too long an answer.
        """
        content = json.dumps(body, separators=(",", ":")).encode()
        try:
            status, response = self._exchange("POST", path, content, _MAX_INFO_BYTES, self._timeout_s)
        except (httpx.HTTPError, AnswerTooLongError) as error:
            raise ServerError(f"server {self.url} gave no answer to {path}: {error}") from None
        if status != httpx.codes.OK:
            raise ServerError(f"server {self.url} answered {status} to {path}")
        return response.json()

    def is_alive(self) -> bool:
        """Tell whether the server answers its health check, or at least has none."""
        try:
            status, _ = self._exchange("GET", "/health", None, _MAX_ANSWER_BYTES, _INFO_TIMEOUT_S)
        except (httpx.HTTPError, AnswerTooLongError):
            return False
        return status != httpx.codes.SERVICE_UNAVAILABLE

    def generate(self, rid: str, input_ids: Sequence[int], max_new_tokens: int) -> Answer:
        """Send one prompt and wait for the end of it."""
        body = {
            "rid": rid,
            # A prompt under a key of its own finds no prefix in a radix cache that was left on, where the release heeds
            # it: up to 0.5.10 the scheduler drops it (Scheduler.handle_generate_request).
            "extra_key": rid,
            "input_ids": input_ids,
            "sampling_params": {"max_new_tokens": max_new_tokens, "temperature": 0},
        }
        content = json.dumps(body, separators=(",", ":")).encode()
        try:
            status, response = self._exchange("POST", "/generate", content, _MAX_ANSWER_BYTES, self._timeout_s)
        except httpx.TimeoutException:
            return Unanswered(f"no answer within {self._timeout_s:g} s", unreachable=True)
        except httpx.HTTPError as error:
            return Unanswered(f"connection failed: {error}", unreachable=True)
        except AnswerTooLongError:
            return Unanswered("the answer is longer than any answer", lingering=True)
        return _judge(rid, len(input_ids), status, response)

    def _exchange(
        self, method: str, path: str, content: bytes | None, max_bytes: int, timeout_s: float
    ) -> tuple[int, "_Response"]:
        deadline = time.monotonic() + timeout_s
        headers = {"Content-Type": "application/json"} if content is not None else {}
        if path == "/health":
            # Asked by a connection of its own: one that is kept open may lead to a server that is no more.
            headers["Connection"] = "close"
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0))
        with self._http.stream(method, self.url + path, content=content, headers=headers, timeout=timeout) as response:
            data = bytearray()
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > max_bytes:
                    raise AnswerTooLongError
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the answer trickles in")
            return response.status_code, _Response(bytes(data), response.headers.get("retry-after", ""))

    def _read_json(self, *paths: str) -> dict[str, Any]:
        """Read the first of `paths` that the server knows."""
        for path in paths:
            try:
                status, response = self._exchange("GET", path, None, _MAX_INFO_BYTES, _INFO_TIMEOUT_S)
            except (httpx.HTTPError, AnswerTooLongError) as error:
                raise ServerError(
                    f"server {self.url} cannot be reached: {error}",
                    hint="start it with auxtap serve, and give --server the URL that it prints",
                ) from None
            if status == httpx.codes.OK:
                value = response.json()
                if isinstance(value, dict):
                    return value
        raise ServerError(
            f"server {self.url} gives no answer to {paths[0]} that SGLang would give (status {status})",
            hint="is that port SGLang's?",
        )


@dataclass(frozen=True)
class _Response:
    data: bytes
    retry_after: str

    def json(self) -> Any:
        """Decode the body, None when it is no JSON."""
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError):
            return None


def _judge(rid: str, n_tokens: int, status: int, response: _Response) -> Answer:
    value = response.json()
    if status != httpx.codes.OK:
        message = _error_message(value)
        reason = f"the server answered {status}" + (f": {message}" if message else "")
        if status in (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.REQUEST_TIMEOUT) or status >= 500:
            return Unanswered(reason, retry_after_s=_seconds(response.retry_after))
        return Declined(reason)
    meta = value.get("meta_info") if isinstance(value, dict) else None
    if not isinstance(meta, dict):
        return Unanswered("the server's answer is unreadable", lingering=True)
    finish = meta.get("finish_reason")
    if isinstance(finish, dict) and finish.get("type") == "abort":
        return Unanswered(f"the server aborted it: {printable(finish.get('message'))}")
    if meta.get("id", rid) != rid or meta.get("prompt_tokens", n_tokens) != n_tokens:
        return Unanswered("the server's answer is to another request", lingering=True)
    return Answered()


def _error_message(value: Any) -> str:
    if isinstance(value, dict):
        error = value.get("error")
        if isinstance(error, dict):
            return printable(error.get("message"))
        return printable(value.get("message", error))
    return ""


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return min(value, _MAX_RETRY_AFTER_S) if math.isfinite(value) and value > 0 else 0.0


def clean_arguments(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server's arguments by name: no secrets, nothing that changes from start to start, nothing large."""
    kept = {}
    for key, value in sorted(info.items()):
        secret = any(word in key.lower() for word in _SECRET_WORDS)
        if secret or key in _VOLATILE or value is None:
            continue
        try:
            text = json.dumps(value, allow_nan=False)
        except ValueError:
            continue
        if len(text) <= _MAX_ARGUMENT_CHARS:
            kept[key] = value
    return kept
