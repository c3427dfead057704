"""One server as the extractor sees it: its replicas, what is on its way through it, whether it is there."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from auxtap.extraction.servers.admission import Admission
from auxtap.extraction.servers.client import ServerClient, ServerInfo
from auxtap.extraction.servers.heartbeat import Heartbeat
from auxtap.extraction.servers.sequence import QueuedSample
from auxtap.extraction.spool.parts import PartsWaiter, Replica
from auxtap.tap.protocol import RequestId


@dataclass(eq=False)
class Lease:
    """One request for one sample through one server, and what it takes there until it is closed."""

    queued: QueuedSample
    rid: RequestId
    asking: bool = True
    taking: bool = True
    # Set when the sample was taken away from a server that went: whatever comes of this request is dropped.
    revoked: bool = False
    give_up_at: float = field(default=float("inf"))


class Endpoint:
    """A server and its traffic; used by several threads."""

    def __init__(
        self,
        client: ServerClient,
        info: ServerInfo,
        replicas: tuple[Replica, ...],
        *,
        max_requests: int,
        max_bytes: int,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with nothing on its way."""
        self.client = client
        self.info = info
        self.replicas = replicas
        self.waiter = PartsWaiter(replicas, stop)
        self.admission = Admission(max_requests, max_bytes)
        self.gone: str | None = None
        self.gone_since = 0.0
        self.heartbeat: Heartbeat | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: set[Lease] = set()
        self._orphans: set[Lease] = set()
        self._unsettled: set[Lease] = set()

    @property
    def url(self) -> str:
        """Where it is."""
        return self.client.url

    @property
    def is_up(self) -> bool:
        """Whether it is believed to be there."""
        return self.gone is None

    @property
    def n_unsettled(self) -> int:
        """Requests whose sample has no fate yet and is not queued again."""
        return len(self._unsettled)

    def note_sign(self) -> None:
        """Take an answer as a sign of life."""
        if self.heartbeat is not None:
            self.heartbeat.note_sign()

    def lease(self, queued: QueuedSample, rid: RequestId) -> Lease | None:
        """Take room for a request, None when there is none or the server is gone."""
        with self._lock:
            if not self.is_up or not self.admission.admit(queued.n_bytes, queued.sample.n_tokens):
                return None
            lease = Lease(queued, rid)
            self._leases.add(lease)
            self._unsettled.add(lease)
            return lease

    def end_request(self, lease: Lease) -> bool:
        """Note that the request was answered; tell whether its sample is still ours to settle."""
        with self._lock:
            if lease.asking:
                lease.asking = False
                self.admission.end_request(lease.queued.sample.n_tokens)
            return not lease.revoked

    def settle(self, lease: Lease) -> None:
        """Note that the sample of a request has its fate, or is queued again; once more is harmless."""
        with self._lock:
            self._unsettled.discard(lease)

    def close(self, lease: Lease) -> None:
        """Give back all that a request takes."""
        self.end_request(lease)
        with self._lock:
            self._close(lease)

    def orphan(self, lease: Lease, patience_s: float) -> None:
        """Give a request up whose parts may still come: its bytes stay taken until they have, or for `patience_s`."""
        self.end_request(lease)
        with self._lock:
            if lease.taking:
                lease.give_up_at = self._clock() + patience_s
                self._orphans.add(lease)

    def clear_orphans(self) -> None:
        """Drop the parts of given-up requests that have come, and the patience with those that have not."""
        with self._lock:
            orphans = list(self._orphans)
        for lease in orphans:
            if self.waiter.has_ended(lease.rid) or self._clock() >= lease.give_up_at:
                self.waiter.discard(lease.rid)
                with self._lock:
                    self._close(lease)

    def leave(self, reason: str, patience_s: float) -> list[Lease]:
        """Take the server for gone; return the requests that are out, whose samples are for others to carry."""
        with self._lock:
            if self.gone is not None:
                return []
            self.gone, self.gone_since = reason, self._clock()
            lost = [lease for lease in self._leases if lease.asking]
            for lease in lost:
                lease.revoked = True
                lease.asking = False
                self.admission.end_request(lease.queued.sample.n_tokens)
                # One that hangs may still write these parts when it wakes up.
                lease.give_up_at = self._clock() + patience_s
                self._orphans.add(lease)
            return lost

    def come_back(self) -> None:
        """Take the server for there again; its writers are read anew.

        Raises:
            ExtractionError: it gives other states than before.
        """
        before = [writer.nonce for replica in self.replicas for writer in replica.writers.topology.writers]
        now = [writer.nonce for replica in self.replicas for writer in replica.writers.refresh().writers]
        self.client.renew()
        with self._lock:
            if now != before:
                # Another start of it: what the one before had begun never ends.
                for lease in self._orphans:
                    lease.give_up_at = self._clock()
            self.gone = None

    def _close(self, lease: Lease) -> None:
        if lease.taking:
            lease.taking = False
            self.admission.free(lease.queued.n_bytes)
        self._leases.discard(lease)
        self._orphans.discard(lease)
