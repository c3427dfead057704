"""Look at a store from outside while something may be writing into it."""

import json
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from auxtap.extraction.run.reporting import ENDED, RUNNING, STATUS_VERSION
from auxtap.extraction.store.ledger import FAILED, SKIPPED, STORED, scan_ledger
from auxtap.extraction.store.store import LEDGER, STATUS, open_manifest

VANISHED, ELSEWHERE, NEVER = "vanished", "running elsewhere", "no session yet"


@dataclass(frozen=True)
class StoreStatus:
    """How far a store is.

    `state` is running, ended, vanished (killed, its process is no more), or running elsewhere (another host says so);
    the counts come from the ledger, rate and traffic from the last word of the session, `age_s` ago.
    """

    state: str
    outcome: str
    n_expected: int
    stored: int
    skipped: int
    failed: int
    n_tokens: int
    tokens_stored: int
    n_bytes: int
    sessions: int
    shard: str
    host: str
    pid: int
    age_s: float | None
    tokens_per_s: float
    in_flight: int
    spool_bytes: int
    spool_limit: int
    servers: int
    servers_up: int
    last_error: str
    eta_s: float | None


def read_status(store: Path) -> StoreStatus:
    """Read how far a store is; nothing in it is changed or locked.

    Raises:
        ExtractionError: it is no store.
        IntegrityError: its manifest is unreadable.
    """
    manifest = open_manifest(store)
    lines = scan_ledger(store / LEDGER).last_lines().values()
    stored = [line for line in lines if line.fate == STORED]
    record = _read_record(store)
    state = _state(record)
    elapsed, tokens = _number(record, "elapsed_s"), _number(record, "tokens_stored")
    rate = tokens / elapsed if elapsed > 0 and state in (RUNNING, ELSEWHERE) else 0.0
    left = _number(record, "n_tokens") - _number(record, "tokens_done")
    return StoreStatus(
        state=state,
        outcome=str(record.get("outcome", "")),
        n_expected=manifest.n_expected,
        stored=len(stored),
        skipped=sum(line.fate == SKIPPED for line in lines),
        failed=sum(line.fate == FAILED for line in lines),
        n_tokens=manifest.dataset.n_tokens,
        tokens_stored=sum(line.n_tokens for line in stored),
        n_bytes=sum(part.n_bytes for line in stored for part in line.parts),
        sessions=manifest.sessions,
        shard=manifest.shard,
        host=str(record.get("host", "")),
        pid=int(_number(record, "pid")),
        age_s=_age(record),
        tokens_per_s=rate,
        in_flight=int(_number(record, "in_flight")),
        spool_bytes=int(_number(record, "spool_bytes")),
        spool_limit=int(_number(record, "spool_limit")),
        servers=int(_number(record, "servers")),
        servers_up=int(_number(record, "servers_up")),
        last_error=str(record.get("last_error", "")),
        eta_s=left / rate if rate > 0 and left > 0 else None,
    )


def _read_record(store: Path) -> dict[str, Any]:
    try:
        record = json.loads((store / STATUS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) and record.get("auxtap_status") == STATUS_VERSION else {}


def _number(record: dict[str, Any], key: str) -> float:
    value = record.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _state(record: dict[str, Any]) -> str:
    if not record:
        return NEVER
    if record.get("state") != RUNNING:
        return ENDED
    if record.get("host") != socket.gethostname():
        return ELSEWHERE
    return RUNNING if _is_same_process(int(_number(record, "pid")), record) else VANISHED


def _is_same_process(pid: int, record: dict[str, Any]) -> bool:
    """Tell whether the process lives and is no later one that was given the same number."""
    import psutil

    started = _timestamp(record, "started")
    try:
        return started is None or psutil.Process(pid).create_time() <= started + 1.0
    except (psutil.Error, ValueError):
        return False


def _timestamp(record: dict[str, Any], key: str) -> float | None:
    try:
        return datetime.fromisoformat(str(record.get(key))).timestamp()
    except ValueError:
        return None


def _age(record: dict[str, Any]) -> float | None:
    updated = _timestamp(record, "updated")
    return max(0.0, time.time() - updated) if updated is not None else None
