"""Watch what the tap says of itself: a row that it could not attribute must never pass unnoticed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from auxtap.extraction.spool.directory import ForeignFileError, SpoolUnion
from auxtap.extraction.spool.untrusted import printable
from auxtap.tap import protocol
from auxtap.tap.protocol import ProtocolError, TapStats


@dataclass(frozen=True)
class TapTrouble:
    """What went wrong inside the server since the watch began."""

    unattributed: int = 0
    errors: int = 0
    last_error: str = ""


class TapWatch:
    """Follows the counters of all writers, over restarts of the server."""

    def __init__(self, spool: SpoolUnion) -> None:
        """Take the counters as they stand for the beginning."""
        self._spool = spool
        self._before: dict[str, TapStats] = {}
        self._latest: dict[str, TapStats] = {}
        self._read()
        self._before = dict(self._latest)

    def poll(self) -> TapTrouble:
        """Read the counters and return what has been added to them since the beginning."""
        self._read()
        unattributed = errors = 0
        last_error = ""
        for nonce, stats in self._latest.items():
            before = self._before.get(nonce, TapStats(nonce=nonce))
            unattributed += max(0, stats.unattributed_batches - before.unattributed_batches)
            if stats.errors > before.errors:
                errors += stats.errors - before.errors
                last_error = printable(stats.last_error)
        return TapTrouble(unattributed, errors, last_error)

    def _read(self) -> None:
        for name in self._spool.names():
            if not protocol.is_descriptor_name(name):
                continue
            try:
                record = json.loads(self._spool.read_record(protocol.stats_name(name)))
                stats = TapStats.from_json(record)
            except (FileNotFoundError, ForeignFileError, ProtocolError, ValueError, RecursionError):
                continue
            if _has_counts(record):
                self._latest[stats.nonce] = stats


def _has_counts(record: Mapping[str, object]) -> bool:
    counts = (record.get("unattributed_batches", 0), record.get("errors", 0))
    return isinstance(record.get("nonce"), str) and all(type(count) is int for count in counts)
