"""A loopback server that plays a tapped SGLang: real HTTP, real parts in a real spool, faults on request."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auxtap.core.draft_ids import EAGLE3_SETTER
from auxtap.extraction.datasets.reading import read_dataset
from auxtap.extraction.run.job import ExtractionJob
from auxtap.tap import protocol
from auxtap.tap.protocol import FAILED, READY, WRITING, FailureRecord, PartMetadata, PartName, RankDescriptor, TapStats

HIDDEN = 8


def state_rows(slot: str, ids: Sequence[int], dtype: str) -> bytes:
    """Rows that follow from layer, token and position alone: [tokens, HIDDEN] in `dtype`."""
    seed = {"final": 997, "final_prenorm": 996}.get(slot) or int(slot.removeprefix("hidden."))
    tokens, columns = np.array(ids, dtype=np.float32)[:, None], np.arange(HIDDEN, dtype=np.float32)[None, :]
    values = np.sin(tokens * 0.37 + columns * 1.1 + seed + np.arange(len(ids), dtype=np.float32)[:, None])
    if dtype == "F32":
        return values.astype("<f4").tobytes()
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


@dataclass
class FakeTap:
    """Writes what the tap would write, for the stages it was given; `faults[index]` are used up try by try."""

    spool: Path
    stages: tuple[tuple[int, ...], ...] = ((3, 5),)
    dtype: str = "F32"
    final: str = "post-norm"
    dp_size: int = 1
    nonce: str = "nonce-a"
    host: str = "testhost"
    setters: protocol.SetterRules = field(default_factory=lambda: {EAGLE3_SETTER: ((1, None),)})
    # The stages that write into this spool; all of them when it is None.
    only: set[int] | None = None
    faults: dict[int, list[str]] = field(default_factory=dict)
    stats: TapStats = field(default_factory=lambda: TapStats(nonce="nonce-a-0-0"))

    def descriptor(self, pp: int, dp: int = 0) -> RankDescriptor:
        return RankDescriptor(
            host=self.host, pid=1, nonce=f"{self.nonce}-{pp}-{dp}", pp_rank=pp, pp_size=len(self.stages),
            dp_rank=dp, dp_size=self.dp_size, tp_size=1, layers=self.stages[pp],
            all_layers=tuple(layer for stage in self.stages for layer in stage),
            has_final=pp == len(self.stages) - 1, num_layers=8, hidden_size=HIDDEN, vocab_size=100,
            context_length=64, dtype=self.dtype, model_class="TinyForCausalLM", model_path="/models/tiny",
            release="0.5.9", patch_digest="sha256:p", source_digest="sha256:s",
            final=self.final, setters=self.setters,
        )  # fmt: skip

    def announce(self) -> None:
        for pp in self._own_stages():
            for dp in range(self.dp_size):
                text = json.dumps(self.descriptor(pp, dp).to_json())
                name = protocol.descriptor_name(self.host, pp, dp)
                (self.spool / f".{name}.tmp").write_text(text)
                (self.spool / f".{name}.tmp").rename(self.spool / name)
        self.publish_stats()

    def _own_stages(self) -> list[int]:
        return [pp for pp in range(len(self.stages)) if self.only is None or pp in self.only]

    def publish_stats(self) -> None:
        name = protocol.stats_name(protocol.descriptor_name(self.host, self._own_stages()[0], 0))
        (self.spool / f".{name}.tmp").write_text(json.dumps(self.stats.to_json()))
        (self.spool / f".{name}.tmp").rename(self.spool / name)

    def answer(self, rid: protocol.RequestId, ids: list[int], fault: str | None) -> None:
        """Leave the parts of a request in the spool."""
        dp = rid.index % self.dp_size
        if fault == "unattributed":
            self.stats = replace(self.stats, unattributed_batches=1, errors=1, last_error="lost a batch")
            self.publish_stats()
            return
        for pp in self._own_stages():
            descriptor = self.descriptor(pp, dp)
            if not descriptor.writes_parts or (fault == "one_stage" and pp > 0):
                continue
            if fault == "failed":
                record = FailureRecord(str(rid), descriptor.nonce, "rows begin at 7")
                (self.spool / str(PartName(rid, pp, dp, FAILED))).write_text(json.dumps(record.to_json()))
                continue
            self._write(rid, descriptor, ids, fault)

    def _write(self, rid: protocol.RequestId, descriptor: RankDescriptor, ids: list[int], fault: str | None) -> None:
        if fault == "wrong_rows":
            ids = ids[:-1]
        layout = protocol.part_layout(
            n_tokens=len(ids), layers=descriptor.layers, has_final=descriptor.has_final,
            hidden_size=HIDDEN * 2 if fault == "wrong_shape" else HIDDEN, dtype=descriptor.dtype,
            final=descriptor.final,
        )  # fmt: skip
        echoed = [(token + 1) % 100 for token in ids] if fault == "wrong_ids" else ids
        data = bytearray(np.array(echoed, dtype="<i8").tobytes())
        for slot in layout.slots[1:]:
            rows = state_rows(slot.name, ids, descriptor.dtype)
            data += rows * (2 if fault == "wrong_shape" else 1)
        if fault in ("nan", "inf"):
            bits = {"F32": 0x7FC00000, "BF16": 0x7FC0, "F16": 0x7E00} if fault == "nan" else {"F32": 0xFF800000}
            width = protocol.DTYPE_BYTES[descriptor.dtype]
            data[-width:] = bits[descriptor.dtype].to_bytes(width, "little")
        digest = protocol.new_digest("sha256")
        digest.update(data)
        if fault == "bad_digest":
            data[-1] ^= 1
        nonce = "of-an-earlier-start" if fault == "stale_nonce" else descriptor.nonce
        pp, dp = descriptor.pp_rank, descriptor.dp_rank
        metadata = PartMetadata(str(rid), nonce, pp, dp, f"sha256:{digest.hexdigest()}")
        blob = protocol.encode_header(layout.slots, metadata.to_header()) + bytes(data)
        if fault == "truncated":
            blob = blob[:-5]
        if fault == "garbage_part":
            blob = b"\xff" * 64
        part, ready = (self.spool / str(PartName(rid, pp, dp, suffix)) for suffix in (WRITING, READY))
        if fault == "symlink":
            (self.spool / "elsewhere").write_bytes(blob)
            ready.symlink_to("elsewhere")
            return
        part.write_bytes(blob)
        if fault != "not_ready":
            part.rename(ready)


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that a fault has broken is no news."""


class FakeServer:
    """The HTTP side; `requests` are the rids it was asked for, in order."""

    def __init__(self, tap: FakeTap, port: int = 0) -> None:
        self.tap = tap
        self.requests: list[protocol.RequestId] = []
        self._reached: set[int] = set()
        self._reached_lock = threading.Lock()
        self.aborted: list[str] = []
        # Requests that are answered before all others hang.
        self.hang_after: int | None = None
        self.peak_in_flight = 0
        self.delay_s = 0.0
        self.healthy = True
        self.hang = threading.Event()
        self.before_answer: Callable[[protocol.RequestId], None] = lambda rid: None
        self.arguments: dict[str, Any] = {"attention_backend": "torch_native", "api_key": "hunter2", "port": 1}
        self._in_flight = 0
        self._lock = threading.Lock()
        server = self

        class Handler(_Handler):
            fake = server

        self._http = _HttpServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.hang.set()
        self._http.shutdown()
        self._http.server_close()

    @contextlib.contextmanager
    def counted(self, rid: protocol.RequestId) -> Iterator[str | None]:
        """Note a request and yield its fault."""
        with self._lock:
            self.requests.append(rid)
            self._in_flight += 1
            self.peak_in_flight = max(self.peak_in_flight, self._in_flight)
            faults = self.tap.faults.get(rid.index, [])
            fault = faults.pop(0) if faults else None
            if self.hang_after is not None and len(self.requests) > self.hang_after:
                fault = "hang"
        try:
            yield fault
        finally:
            with self._lock:
                self._in_flight -= 1

    def reached(self, n_requests: int) -> bool:
        """Tell once that so many requests have come; two may come at the same moment, so that none is the n-th."""
        with self._reached_lock:
            first = len(self.requests) >= n_requests and n_requests not in self._reached
            if first:
                self._reached.add(n_requests)
            return first


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet
    fake: FakeServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(200 if self.fake.healthy else 503, b"")
        elif self.path == "/get_model_info":
            self._send(200, json.dumps({"model_path": self.fake.tap.descriptor(0).model_path}).encode())
        elif self.path == "/get_server_info":
            self._send(200, json.dumps({"max_req_input_len": 51, **self.fake.arguments}).encode())
        else:
            self._send(404, b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/abort_request":
            self.fake.aborted.append(body["rid"])
            self._send(200, b"")
            return
        rid = protocol.parse_rid(body["rid"])
        assert rid is not None
        with self.fake.counted(rid) as fault:
            self.fake.before_answer(rid)
            time.sleep(self.fake.delay_s)
            self._answer(rid, body["input_ids"], fault)

    def _answer(self, rid: protocol.RequestId, ids: list[int], fault: str | None) -> None:
        good = {
            "text": "",
            "meta_info": {"id": str(rid), "prompt_tokens": len(ids), "finish_reason": {"type": "length"}},
        }
        if fault in ("500", "429", "503"):
            self._send(int(fault), b'{"error": {"message": "try again"}}')
        elif fault == "400":
            message = f"The input ({len(ids)} tokens) is longer than the model's context length (64 tokens)."
            self._send(400, json.dumps({"error": {"message": message}}).encode())
        elif fault == "garbage":
            self._send(200, b"<html>" + b"\xff" * 10)
        elif fault == "huge":
            self._send(200, b"x" * (3 << 20))
        elif fault == "hang":
            self.fake.hang.wait(30)
        elif fault == "half_body":
            data = json.dumps(good).encode()
            self._send(200, data[: len(data) // 2], length=len(data))
            self.close_connection = True
        elif fault == "drop":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif fault == "abort":
            finish = {"type": "abort", "message": "Abort in waiting queue"}
            self._send(200, json.dumps({"meta_info": {"id": str(rid), "finish_reason": finish}}).encode())
        elif fault == "other_answer":
            self._send(200, json.dumps({"meta_info": {"id": "somebody else"}}).encode())
        elif fault == "late":
            self._send(200, json.dumps(good).encode())
            time.sleep(0.2)
            self.fake.tap.answer(rid, ids, None)
        else:
            self.fake.tap.answer(rid, ids, fault)
            self._send(200, json.dumps(good).encode())

    def _send(self, status: int, data: bytes, *, length: int | None = None) -> None:
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(data) if length is None else length))
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    path = tmp_path / "spool"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def tap(spool: Path) -> FakeTap:
    return FakeTap(spool)


@pytest.fixture
def server(tap: FakeTap) -> Iterator[FakeServer]:
    tap.announce()
    server = FakeServer(tap)
    yield server
    server.stop()


def prompt(index: int) -> list[int]:
    """Token ids of a sample: 1 to 23 tokens."""
    return [(index * 7 + position) % 100 for position in range(1 + index * 5 % 23)]


@pytest.fixture
def write_dataset(tmp_path: Path) -> Callable[..., Path]:
    def write(n_samples: int, name: str = "data.jsonl") -> Path:
        lines = [
            {"id": f"s/{index}", "input_ids": prompt(index), "loss_mask": [t % 2 for t in prompt(index)]}
            for index in range(n_samples)
        ]
        path = tmp_path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return write


@pytest.fixture
def make_job(tmp_path: Path, server: FakeServer, write_dataset: Callable[..., Path]) -> Callable[..., ExtractionJob]:
    def make(n_samples: int = 3, **changes: Any) -> ExtractionJob:
        values: dict[str, Any] = {
            "dataset": read_dataset(write_dataset(n_samples)),
            "server_url": server.url,
            "spool": server.tap.spool,
            "store": tmp_path / "store",
            "concurrency": 4,
            "timeout_s": 5.0,
            "parts_timeout_s": 0.3,
            "backoff_s": 0.01,
        }
        return ExtractionJob(**{**values, **changes})

    return make


@pytest.fixture(autouse=True)
def _quick_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake tap publishes its counters before it answers."""
    monkeypatch.setattr("auxtap.extraction.run.session.SETTLE_S", 0.0)


@pytest.fixture(name="state_rows")
def _state_rows() -> Callable[[str, Sequence[int], str], bytes]:
    return state_rows


@pytest.fixture
def fake_server() -> Iterator[Callable[..., FakeServer]]:
    started: list[FakeServer] = []

    def start(tap: FakeTap, port: int = 0) -> FakeServer:
        started.append(FakeServer(tap, port))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def second(tap: Any, tmp_path: Path, fake_server: Any) -> Any:
    """Another server of the same model with a spool of its own."""
    path = tmp_path / "spool-2"
    path.mkdir(mode=0o700)
    other = type(tap)(path, nonce="nonce-2", host="otherhost")
    other.announce()
    return fake_server(other)
