"""Run an extraction: requests out, parts in, every sample to a fate."""

from pathlib import Path

from auxtap.core.errors import UsageError
from auxtap.extraction.datasets.tokenizer import doubts_of_tokenizer
from auxtap.extraction.run.describe import describe_run
from auxtap.extraction.run.fleet import open_fleet
from auxtap.extraction.run.job import (
    ExtractionJob,
    ExtractionProgress,
    ExtractionSummary,
    Observer,
    SampleFate,
    StopRequest,
    ignore_progress,
)
from auxtap.extraction.run.reporting import StatusFile, observe_all
from auxtap.extraction.run.request_runner import ATTEMPTS_A_SESSION
from auxtap.extraction.run.session import Session, SessionContext
from auxtap.extraction.run.tally import Tally
from auxtap.extraction.servers.restart import Keeper
from auxtap.extraction.store.formats.part_formats import part_format
from auxtap.extraction.store.opening import open_store
from auxtap.extraction.store.remote_samples import RemoteSamples

# The answer is thrown away; more than one token is for proving that decoding leaves the rows alone.
MAX_NEW_TOKENS = 1024

__all__ = [
    "ExtractionJob",
    "ExtractionProgress",
    "ExtractionSummary",
    "Observer",
    "SampleFate",
    "StopRequest",
    "ignore_progress",
    "run_extraction",
]


def run_extraction(
    job: ExtractionJob,
    observe: Observer = ignore_progress,
    *,
    stop: StopRequest | None = None,
    keeper: Keeper | None = None,
) -> ExtractionSummary:
    """Extract every sample of the job that its store does not hold yet.

    `observe` is called in this thread only. `keeper` brings servers back that have gone; by default an
    `auxtap serve` that keeps one is asked.

    Raises:
        UsageError: the job asks for something that cannot be.
        ServerError: a server cannot be reached at the start, or all went away or got stuck in the middle.
        ExtractionError: dataset, spool or store are not fit for the job; what is stored stays.
        IntegrityError: the store's manifest or ledger are unreadable.
    """
    check_job(job)
    stop = stop or StopRequest()
    status = StatusFile(job.store)
    tally = Tally(job, observe_all([observe, status]))
    with open_fleet(job, stop.now, keeper) as fleet:
        head = fleet.topology.head
        job.dataset.check_vocabulary(head.vocab_size)
        for doubt in doubts_of_tokenizer(job.dataset.tokenizer, Path(head.model_path), head.vocab_size):
            tally.say(doubt)
        for end in fleet.endpoints:
            if end.info.model_path and end.info.model_path != head.model_path:
                tally.say(f"{end.url} says it serves {end.info.model_path}, the spool is written by {head.model_path}")
        wanted = describe_run(job, fleet.topology, fleet.endpoints[0].info)
        remote = RemoteSamples(job.samples_url) if job.samples_url is not None else None
        with open_store(job.store, wanted, tally.say, remote) as store:
            run, first_attempt = store.manifest.run, store.manifest.sessions * ATTEMPTS_A_SESSION
            fleet.sweep(run, first_attempt)
            outcome = "failed"
            try:
                summary = Session(SessionContext(job, fleet, store, stop), tally).carry_out()
                outcome = summary.outcome
                return summary
            except Exception as error:
                outcome = f"failed: {error}"
                raise
            finally:
                status.end(outcome)
                fleet.sweep(run, first_attempt + ATTEMPTS_A_SESSION)


def check_job(job: ExtractionJob) -> None:
    """Refuse a job that cannot be.

    Raises:
        UsageError: says what is out of range, or which package is missing.
    """
    part_format(job.part_format)
    if not 0 <= job.max_new_tokens <= MAX_NEW_TOKENS:
        raise UsageError(
            f"max new tokens is {job.max_new_tokens}; a prompt needs 0 or 1, at most {MAX_NEW_TOKENS}",
            hint="--max-new-tokens 1 lets the canary compare with a served token",
        )
    if not 1 <= job.concurrency <= 1024:
        raise UsageError(
            f"concurrency is {job.concurrency}; it goes from 1 to 1024",
            hint="give --concurrency a number from 1 to 1024",
        )
    if not 1 <= job.max_tries < ATTEMPTS_A_SESSION:
        raise UsageError(
            f"tries are {job.max_tries}; they go from 1 to {ATTEMPTS_A_SESSION - 1}",
            hint="give --tries a number in that range",
        )
    if min(job.timeout_s, job.parts_timeout_s, job.stall_timeout_s) <= 0:
        raise UsageError("timeouts must be positive", hint="give seconds above 0")
    if not 1 <= job.drain_threads <= 64:
        raise UsageError(
            f"drain threads are {job.drain_threads}; they go from 1 to 64",
            hint="give --drain-threads a number from 1 to 64",
        )
    if len({place.url for place in job.places}) < len(job.places):
        raise UsageError("a server is named twice", hint="name each --server once, with its own --spool")
    if len({path.absolute() for place in job.places for path in place.spools}) < sum(len(p.spools) for p in job.places):
        raise UsageError("a spool is named twice", hint="every server writes into a spool of its own")
    if job.samples_url is not None and job.part_format != "safetensors":
        raise UsageError("a store at a URL takes format safetensors only", hint="leave out --format")
    if job.max_spool_bytes is not None and job.max_spool_bytes <= 0:
        raise UsageError("the spool's bound must be positive", hint="give --max-spool-bytes a size such as 64G")
