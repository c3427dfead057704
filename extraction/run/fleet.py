"""All servers of a run: opened together, checked against each other, chosen by the tokens they have in flight."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from auxtap.core.errors import ExtractionError
from auxtap.extraction.run.job import ExtractionJob, ServerPlace
from auxtap.extraction.run.tally import Traffic
from auxtap.extraction.servers.client import ServerClient, ServerInfo
from auxtap.extraction.servers.endpoint import Endpoint
from auxtap.extraction.servers.heartbeat import Heartbeat
from auxtap.extraction.servers.restart import Keeper, LostServer, SpoolKeeper
from auxtap.extraction.servers.sequence import QueuedSample
from auxtap.extraction.spool.parts import Replica, WritersWatch, removed_spool
from auxtap.extraction.spool.topology import Topology, WritersMissingError, open_replicas

_SHARE_OF_FREE = (4, 5)


class Fleet:
    """The servers; `topology` is what each of them writes."""

    def __init__(self, endpoints: tuple[Endpoint, ...], keeper: Keeper) -> None:
        """Take servers that are open and serve the same."""
        self.endpoints = endpoints
        self.topology: Topology = endpoints[0].replicas[0].writers.topology
        self._keeper = keeper

    @property
    def longest_prompt(self) -> int:
        """Tokens that every server takes."""
        limits = [
            min(replica.writers.topology.head.context_length - 1, end.info.longest_prompt or 1 << 62)
            for end in self.endpoints
            for replica in end.replicas
        ]
        return min(limits)

    @property
    def max_bytes(self) -> int:
        """The largest sample that some server's spool takes."""
        return max(end.admission.max_bytes for end in self.endpoints)

    @property
    def n_unsettled(self) -> int:
        """Requests of all servers that are yet to be settled."""
        return sum(end.n_unsettled for end in self.endpoints)

    @property
    def peak_spool_bytes(self) -> int:
        """The most that was taken of the spools, each by itself."""
        return sum(end.admission.peak_bytes for end in self.endpoints)

    def choose(self, queued: QueuedSample) -> Endpoint | None:
        """Return the server with the fewest tokens in flight that has room, None when none has."""
        fitting = [end for end in self.endpoints if end.is_up and end.admission.fits(queued.n_bytes)]
        return min(fitting, key=lambda end: end.admission.n_tokens, default=None)

    def longest_living_gone(self) -> Endpoint | None:
        """Return the server that went last when all are gone, None while one is there."""
        if any(end.is_up for end in self.endpoints):
            return None
        return max(self.endpoints, key=lambda end: end.gone_since)

    def is_coming_back(self) -> bool:
        """Tell whether a server that is gone is being started again."""
        return any(not end.is_up and self._keeper.is_at_it(_lost(end)) for end in self.endpoints)

    def traffic(self) -> Traffic:
        """Return what is on its way."""
        return Traffic(
            in_flight=sum(end.admission.n_requests for end in self.endpoints),
            spool_bytes=sum(end.admission.n_bytes for end in self.endpoints),
            spool_limit=sum(end.admission.max_bytes for end in self.endpoints),
            servers_up=sum(end.is_up for end in self.endpoints),
            servers=len(self.endpoints),
        )

    def check_spools(self) -> None:
        """Raise when a spool is not where it was.

        Raises:
            ExtractionError: it was removed, or something else stands in its place.
        """
        for end in self.endpoints:
            for replica in end.replicas:
                if not replica.spool.is_in_place():
                    raise removed_spool(replica)

    def clear_orphans(self) -> None:
        """Drop what has come of requests that were given up."""
        for end in self.endpoints:
            end.clear_orphans()

    def shares_device_with(self, path: Path) -> bool:
        """Tell whether a spool lies on the same device as `path`."""
        with contextlib.suppress(OSError):
            device = path.stat().st_dev
            return any(device in replica.spool.free_by_device() for end in self.endpoints for replica in end.replicas)
        return False

    def sweep(self, run: str, before_attempt: int) -> None:
        """Remove what older attempts of a run left in the spools."""
        for end in self.endpoints:
            for replica in end.replicas:
                replica.spool.sweep(run, before_attempt)

    def watch(
        self,
        stall_s: float,
        lose: Callable[[Endpoint, str], None],
        fail: Callable[[Exception], None],
        wake: Callable[[], None],
    ) -> None:
        """Begin to look after every server."""
        for end in self.endpoints:
            end.heartbeat = Heartbeat(_Watched(end, self._keeper, lose, fail, wake), stall_s=stall_s)
            end.heartbeat.start()

    def watch_no_longer(self) -> None:
        """Leave the servers to themselves."""
        for end in self.endpoints:
            if end.heartbeat is not None:
                end.heartbeat.stop()


def _lost(end: Endpoint) -> LostServer:
    # Behind a router nobody knows which of its servers is to blame, so none of them is to be started again.
    replicas = end.replicas if len(end.replicas) == 1 else ()
    return LostServer(
        url=end.url,
        reason=end.gone or "",
        spools=tuple(path for replica in replicas for path in replica.spool.paths),
        nonces=frozenset(writer.nonce for replica in replicas for writer in replica.writers.topology.writers),
    )


class _Watched:
    """A server with what is to be done when it goes or comes back."""

    def __init__(
        self,
        endpoint: Endpoint,
        keeper: Keeper,
        lose: Callable[[Endpoint, str], None],
        fail: Callable[[Exception], None],
        wake: Callable[[], None],
    ) -> None:
        self._endpoint = endpoint
        self._keeper = keeper
        self._lose = lose
        self._fail = fail
        self._wake = wake
        self._asked_for: float | None = None

    def is_alive(self) -> bool:
        end = self._endpoint
        if end.gone is not None:
            lost, first = _lost(end), self._asked_for != end.gone_since
            self._asked_for = end.gone_since
            try:
                # Asked again when its next start came to nothing.
                if first or not self._keeper.is_at_it(lost):
                    self._keeper.restart(lost)
            except Exception as error:
                self._fail(error)
                return False
        return end.client.is_alive()

    def is_waiting(self) -> bool:
        return self._endpoint.admission.n_requests > 0

    def is_gone(self) -> bool:
        return not self._endpoint.is_up

    def report_stall(self, seconds: float) -> None:
        self._lose(self._endpoint, f"stuck: no sign of life for {seconds:.0f} s")

    def report_return(self) -> None:
        try:
            self._endpoint.come_back()
        except WritersMissingError:
            return  # looked for again: they announce themselves while the server starts
        except ExtractionError as error:
            self._fail(error)
            return
        self._wake()


@contextlib.contextmanager
def open_fleet(job: ExtractionJob, stop: threading.Event, keeper: Keeper | None = None) -> Iterator[Fleet]:
    """Open the spools and clients of every server for the length of the block.

    Raises:
        ExtractionError: a spool is not fit, or the servers do not serve the same.
        ServerError: a server cannot be reached.
    """
    with contextlib.ExitStack() as stack:
        opened = [_open_place(place, job, stack) for place in job.places]
        _check_alike([replica.writers.topology for _, _, replicas in opened for replica in replicas])
        budgets = _budgets(job.max_spool_bytes, [replicas for _, _, replicas in opened])
        endpoints = tuple(
            Endpoint(client, info, replicas, max_requests=job.concurrency, max_bytes=budget, stop=stop)
            for (client, info, replicas), budget in zip(opened, budgets, strict=True)
        )
        yield Fleet(endpoints, keeper or SpoolKeeper())


def _open_place(
    place: ServerPlace, job: ExtractionJob, stack: contextlib.ExitStack
) -> tuple[ServerClient, ServerInfo, tuple[Replica, ...]]:
    unions = stack.enter_context(open_replicas(place.spools))
    client = stack.enter_context(ServerClient(place.url, connections=job.concurrency, timeout_s=job.timeout_s))
    replicas = tuple(Replica(union, WritersWatch(union)) for union in unions)
    return client, client.read_info(), replicas


def _check_alike(topologies: list[Topology]) -> None:
    first = topologies[0]
    for other in topologies[1:]:
        differences = first.differences(other)
        if differences:
            raise ExtractionError(
                f"the servers do not serve the same: {'; '.join(differences)}",
                hint="serve one model with one patch and one set of layers everywhere",
            )


def _budgets(limit: int | None, places: list[tuple[Replica, ...]]) -> list[int]:
    """Divide the spool between the servers: the given bound, or most of what is free on each device."""
    if limit is not None:
        return [max(1, limit // len(places))] * len(places)
    users: dict[int, int] = {}
    free: dict[int, int] = {}
    devices = []
    for replicas in places:
        own = {device: n for replica in replicas for device, n in replica.spool.free_by_device().items()}
        devices.append(set(own))
        free.update(own)
        for device in own:
            users[device] = users.get(device, 0) + 1
    share, of = _SHARE_OF_FREE
    return [max(1, min(free[device] * share // of // users[device] for device in own)) for own in devices]
