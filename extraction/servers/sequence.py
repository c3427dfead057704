"""The order in which samples are sent: like lengths together, nobody passed over for long."""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from auxtap.extraction.datasets.reading import Sample

Room = TypeVar("Room")
# Samples are sorted by length within windows of the dataset's order, so that none waits longer than its window.
WINDOW = 256
# How far behind the next sample one is looked for that fits, and how often the next one may be passed over.
LOOK_AHEAD = 64
PATIENCE = 64


@dataclass(eq=False)
class QueuedSample:
    """A sample on its way.

    `tries` count against it, `handovers` are servers that went away under it, `number` is that of its last request
    in this session.
    """

    sample: Sample
    n_bytes: int
    tries: int = 0
    handovers: int = 0
    number: int = 0
    passed_over: int = field(default=0, repr=False)
    began: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since its first request; 0 when there was none."""
        return time.monotonic() - self.began if self.began else 0.0


def in_sending_order(samples: Sequence[Sample], window: int = WINDOW) -> list[Sample]:
    """Sort by length within each window, longest first: like lengths share a batch, none ends on a long one."""
    ordered: list[Sample] = []
    for begin in range(0, len(samples), window):
        ordered += sorted(samples[begin : begin + window], key=lambda sample: (-sample.n_tokens, sample.index))
    return ordered


class SendingQueue:
    """Parcels yet to be sent, and those that came back to be sent again; used by several threads."""

    def __init__(self, queued_samples: Sequence[QueuedSample], clock: Callable[[], float] = time.monotonic) -> None:
        """Take samples in the order in which they are to go."""
        self._new = deque(queued_samples)
        self._returned: list[tuple[float, int, QueuedSample]] = []
        self._clock = clock
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._new) + len(self._returned)

    def put_back(self, queued: QueuedSample, delay_s: float) -> None:
        """Have a sample sent again, not before `delay_s`."""
        with self._lock:
            heapq.heappush(self._returned, (self._clock() + delay_s, queued.sample.index, queued))

    def next_due_s(self) -> float:
        """Return the seconds until a sample that came back may be sent, infinity when there is none."""
        with self._lock:
            return max(0.0, self._returned[0][0] - self._clock()) if self._returned else float("inf")

    def take(self, choose: Callable[[QueuedSample], Room | None]) -> tuple[QueuedSample, Room] | None:
        """Return the next sample that `choose` finds room for, with that room; None when there is none at the moment.

        One that came back and is due goes first. One that does not fit is passed over by smaller ones, but only
        `PATIENCE` times: then everything waits until there is room for it.
        """
        with self._lock:
            if self._returned and self._returned[0][0] <= self._clock():
                queued = self._returned[0][2]
                if (room := choose(queued)) is not None:
                    heapq.heappop(self._returned)
                    return queued, room
                queued.passed_over += 1
                if queued.passed_over > PATIENCE:
                    return None
            for position in range(min(LOOK_AHEAD, len(self._new))):
                queued = self._new[position]
                if (room := choose(queued)) is not None:
                    del self._new[position]
                    for other in (self._new[i] for i in range(position)):
                        other.passed_over += 1
                    return queued, room
                if queued.passed_over >= PATIENCE:
                    return None
            return None
