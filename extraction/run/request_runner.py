"""Send one request and fetch what the tap leaves of it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from auxtap.extraction.datasets.reading import Sample
from auxtap.extraction.run.job import ExtractionJob, StopRequest
from auxtap.extraction.servers.client import Answered, Declined, Unanswered
from auxtap.extraction.servers.endpoint import Endpoint, Lease
from auxtap.extraction.spool.parts import PartRejectedError, ReadyPart
from auxtap.extraction.store.ledger import LedgerLine, LedgerPart, utc_now

ATTEMPTS_A_SESSION = 100


@dataclass(frozen=True)
class Received:
    """Every part of the sample is in the spool."""

    parts: tuple[ReadyPart, ...]


@dataclass(frozen=True)
class TryAgain:
    """This try came to nothing; `lingering` when the server may still be at it."""

    reason: str
    delay_s: float = 0.0
    lingering: bool = False


@dataclass(frozen=True)
class Refused:
    """Another try would give the same."""

    reason: str


@dataclass(frozen=True)
class ServerGone:
    """It was no fault of the sample: the server is not there."""

    reason: str


@dataclass(frozen=True)
class Rejected:
    """Parts came that are not to be believed, or none."""

    error: PartRejectedError


Outcome = Received | TryAgain | Refused | ServerGone | Rejected


def fate_line(
    sample: Sample,
    fate: str,
    reason: str,
    attempts: int,
    parts: tuple[LedgerPart, ...] = (),
    seconds: float = 0.0,
) -> LedgerLine:
    """Return the ledger line for a sample's fate, which it has now."""
    return LedgerLine(
        index=sample.index,
        sample_id=sample.sample_id,
        fate=fate,
        reason=reason,
        n_tokens=sample.n_tokens,
        attempts=attempts,
        ids_digest=sample.ids_digest(),
        parts=parts,
        time=utc_now(),
        split=sample.split,
        seconds=round(seconds, 3),
    )


@dataclass(frozen=True)
class RequestRunner:
    """What all requests of a run have in common; used by several threads at once."""

    job: ExtractionJob
    stop: StopRequest
    halted: threading.Event

    def fetch(self, endpoint: Endpoint, lease: Lease) -> Outcome | None:
        """Send a request and wait for its parts; None when the run ended, or the sample was taken away, meanwhile.

        Raises:
            ExtractionError: the spool is gone, or its writers changed.
        """
        sample = lease.queued.sample
        answer = endpoint.client.generate(str(lease.rid), sample.token_ids(), self.job.max_new_tokens)
        if self._is_over(lease):
            return None
        match answer:
            case Declined(reason):
                endpoint.note_sign()
                return Refused(reason)
            case Unanswered(unreachable=True):
                if not endpoint.client.is_alive():
                    return ServerGone(answer.reason)
                endpoint.client.abort(str(lease.rid))
                return TryAgain(answer.reason, lingering=True)
            case Unanswered():
                endpoint.note_sign()
                return TryAgain(answer.reason, answer.retry_after_s, lingering=answer.lingering)
            case Answered():
                endpoint.note_sign()
        try:
            return Received(
                endpoint.waiter.wait(lease.rid, sample.n_tokens, self.job.parts_timeout_s, self._given_up(lease))
            )
        except PartRejectedError as error:
            return None if self._is_over(lease) else Rejected(error)

    def _is_over(self, lease: Lease) -> bool:
        return self.stop.now.is_set() or self.halted.is_set() or lease.revoked

    def _given_up(self, lease: Lease) -> Callable[[], bool]:
        return lambda: self._is_over(lease)
