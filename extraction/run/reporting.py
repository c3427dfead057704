"""Tell of a running extraction to other programs: a status file in the store, JSON lines, Prometheus."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from auxtap.core.errors import UsageError
from auxtap.extraction.run.job import ExtractionProgress, Observer
from auxtap.extraction.store.ledger import utc_now
from auxtap.extraction.store.store import STATUS

STATUS_VERSION = 1
STATUS_EVERY_S = 1.0
LOG_EVERY_S = 5.0
RUNNING, ENDED = "running", "ended"
# Metrics are offered to this machine only; a collector elsewhere comes through a tunnel or a proxy.
METRICS_ADDRESS = "127.0.0.1"


def observe_all(observers: Sequence[Observer]) -> Observer:
    """Return one observer that hands on to all."""

    def observe(progress: ExtractionProgress) -> None:
        for observer in observers:
            observer(progress)

    return observe


class StatusFile:
    """Keeps `status.json` of a store; a store that takes no file takes none of these either."""

    def __init__(self, store: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing written."""
        self._path = store / STATUS
        self._clock = clock
        self._written_at = float("-inf")
        self._started = utc_now()
        self._latest: ExtractionProgress | None = None

    def __call__(self, progress: ExtractionProgress) -> None:
        """Write what is due."""
        self._latest = progress
        if self._clock() - self._written_at >= STATUS_EVERY_S:
            self._written_at = self._clock()
            self._write(RUNNING, "")

    def end(self, outcome: str) -> None:
        """Write how it ended."""
        self._write(ENDED, outcome)

    def _write(self, state: str, outcome: str) -> None:
        if self._latest is None:
            return
        record = {
            "auxtap_status": STATUS_VERSION,
            "state": state,
            "outcome": outcome,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": self._started,
            "updated": utc_now(),
            **asdict(self._latest),
        }
        record.pop("message")
        temporary = self._path.with_name(f".{STATUS}.{os.getpid()}.tmp")
        try:
            temporary.write_text(json.dumps(record))
            temporary.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


class JsonLog:
    """Writes one JSON object a line: messages at once, progress from time to time."""

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to `file`, which stays the caller's."""
        self._file = file
        self._clock = clock
        self._told_at = clock()

    def __call__(self, progress: ExtractionProgress) -> None:
        """Write what is due."""
        if progress.message is not None:
            self.write("message", {"text": progress.message})
        elif self._clock() - self._told_at >= LOG_EVERY_S:
            self._told_at = self._clock()
            record = asdict(progress)
            record.pop("message")
            self.write("progress", record)

    def write(self, event: str, record: dict[str, Any]) -> None:
        """Write one event."""
        line = json.dumps({"time": utc_now(), "event": event, **record}, ensure_ascii=False)
        self._file.write(line + "\n")
        self._file.flush()


# (name, what it says, field of ExtractionProgress)
_GAUGES = (
    ("auxtap_samples", "Samples of the dataset.", "n_samples"),
    ("auxtap_samples_stored_before", "Samples that an earlier run had stored.", "already_stored"),
    ("auxtap_samples_stored", "Samples that this run has stored.", "stored"),
    ("auxtap_samples_skipped", "Samples that were not sent.", "skipped"),
    ("auxtap_samples_failed", "Samples that failed.", "failed"),
    ("auxtap_requests_in_flight", "Requests that are out.", "in_flight"),
    ("auxtap_tokens", "Tokens of the dataset.", "n_tokens"),
    ("auxtap_tokens_stored", "Tokens that this run has stored.", "tokens_stored"),
    ("auxtap_bytes_stored", "Bytes that this run has stored.", "bytes_stored"),
    ("auxtap_spool_bytes", "Bytes that are, or will be, in the spool.", "spool_bytes"),
    ("auxtap_spool_limit_bytes", "Bytes that may be in the spool.", "spool_limit"),
    ("auxtap_servers", "Servers of this run.", "servers"),
    ("auxtap_servers_up", "Servers that are there.", "servers_up"),
    ("auxtap_elapsed_seconds", "Seconds since the start.", "elapsed_s"),
)


class Metrics:
    """Offers a run's figures to Prometheus."""

    def __init__(self, port: int) -> None:
        """Listen on `port` of this machine, any free one when it is 0.

        Raises:
            UsageError: prometheus-client is not installed, or the port is taken.
        """
        try:
            from prometheus_client import CollectorRegistry, Gauge, start_http_server
        except ImportError:
            raise UsageError(
                "metrics need prometheus-client, which is not installed", hint="pip install 'auxtap[metrics]'"
            ) from None
        registry = CollectorRegistry()
        self._gauges = [(Gauge(name, text, registry=registry), field) for name, text, field in _GAUGES]
        try:
            self._server, self._thread = start_http_server(port, METRICS_ADDRESS, registry)
        except OSError as error:
            raise UsageError(
                f"cannot offer metrics on port {port}: {error.strerror}", hint="choose another --metrics-port"
            ) from None
        self.port = int(self._server.server_address[1])

    def __call__(self, progress: ExtractionProgress) -> None:
        """Take the figures of the moment."""
        for gauge, field in self._gauges:
            gauge.set(getattr(progress, field))

    def close(self) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
