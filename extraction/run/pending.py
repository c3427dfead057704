"""What is yet to be sent: held against the store, the servers' limits and the room that is left."""

from auxtap.core.errors import ExtractionError
from auxtap.extraction.datasets.reading import Sample
from auxtap.extraction.run.dry_run import LEDGER_LINE_BYTES, Bounds, Room, find_obstacle, stored_bytes
from auxtap.extraction.run.fleet import Fleet
from auxtap.extraction.run.job import ExtractionJob
from auxtap.extraction.run.request_runner import fate_line
from auxtap.extraction.run.tally import Tally
from auxtap.extraction.servers.sequence import QueuedSample, in_sending_order
from auxtap.extraction.spool.topology import Topology, stage_layout
from auxtap.extraction.store.formats.stored_part import PartContent, stored_content
from auxtap.extraction.store.ledger import FAILED, SKIPPED, STORED
from auxtap.extraction.store.store import Store, part_metadata


def find_pending(job: ExtractionJob, fleet: Fleet, store: Store, tally: Tally) -> list[QueuedSample]:
    """Count what the store holds already and return what is to be sent, in the order of sending.

    A sample that no server takes is skipped; one that is larger than the spool's bound fails.

    Raises:
        ExtractionError: the store cannot hold the result.
    """
    pending = []
    held_bytes = 0
    for sample in job.dataset.samples:
        if job.shard is not None and not job.shard.takes(sample.index):
            continue
        line = store.last_line(sample.sample_id)
        if _holds(store, fleet.topology, sample):
            held_bytes += sum(part.n_bytes for part in line.parts) if line is not None else 0
            tally.add_already_stored(sample.n_tokens)
        elif sample.n_tokens > fleet.longest_prompt:
            reason = f"{sample.n_tokens} tokens are more than the server takes ({fleet.longest_prompt})"
            _settle(store, tally, sample, SKIPPED, reason)
        else:
            if line is not None and line.fate == STORED:
                tally.say(f"{sample.sample_id}: its stored files are not whole; taken again")
            pending.append(sample)
    _check_room(job, fleet, store, pending, held_bytes)
    queued_samples = []
    for sample in in_sending_order(pending):
        n_bytes = fleet.topology.spool_bytes(sample.n_tokens)
        if n_bytes > fleet.max_bytes:
            reason = f"it takes {n_bytes} bytes of spool, more than the bound of {fleet.max_bytes}"
            _settle(store, tally, sample, FAILED, reason)
        else:
            queued_samples.append(QueuedSample(sample, n_bytes))
    return queued_samples


def _settle(store: Store, tally: Tally, sample: Sample, fate: str, reason: str) -> None:
    """Give a sample its fate without sending it; the ledger is not told the same twice."""
    line = fate_line(sample, fate, reason, 0)
    last = store.last_line(sample.sample_id)
    if last is None or (last.fate, last.reason) != (fate, reason):
        store.record(line)
    tally.add_fate(line)


def _holds(store: Store, topology: Topology, sample: Sample) -> bool:
    stages = {stage.pp_rank: stage for stage in topology.stages}

    def contents(stage: int, tap_digest: str) -> PartContent:
        metadata = part_metadata(sample.index, sample.sample_id, stage, tap_digest)
        return stored_content(stage_layout(stages[stage], sample.n_tokens), metadata)

    return store.holds(sample, contents)


def _check_room(job: ExtractionJob, fleet: Fleet, store: Store, pending: list[Sample], held_bytes: int) -> None:
    needed = sum(
        stored_bytes(fleet.topology, s.index, s.sample_id, s.n_tokens, job.part_format) + LEDGER_LINE_BYTES
        for s in pending
    )
    in_spool = sorted((fleet.topology.spool_bytes(sample.n_tokens) for sample in pending), reverse=True)
    n_slots = len(fleet.endpoints) * job.concurrency + job.drain_threads
    obstacle = find_obstacle(
        needed=needed,
        total=needed + held_bytes,
        largest_in_spool=0,  # such a sample fails alone
        peak_spool=min(sum(in_spool[:n_slots]), sum(end.admission.max_bytes for end in fleet.endpoints)),
        room=Room(None, store.free_bytes(), fleet.shares_device_with(store.path)),
        bounds=Bounds(job.max_bytes, job.reserve_bytes),
    )
    if obstacle is not None:
        raise ExtractionError(
            f"store {store.path} cannot hold the result: {obstacle}",
            hint="nothing was sent; auxtap extract --dry-run says what it takes",
        )
