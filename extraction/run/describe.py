"""Put together what a run's store is of, from the dataset, the writers and the server."""

from dataclasses import asdict

from auxtap.core.draft_ids import OffsetRule, find_draft_ids
from auxtap.core.version import __version__
from auxtap.extraction.datasets.reading import Dataset
from auxtap.extraction.run.job import ExtractionJob
from auxtap.extraction.servers.client import ServerInfo
from auxtap.extraction.spool.topology import Topology, stage_layout
from auxtap.extraction.store.store_manifest import (
    NO_RUN,
    DatasetFacts,
    ModelFacts,
    StageStates,
    StoreManifest,
)
from auxtap.tap.protocol import INPUT_IDS, RankDescriptor


def describe_dataset(dataset: Dataset) -> DatasetFacts:
    """Return what a manifest says of a dataset."""
    return DatasetFacts(
        digest=dataset.digest,
        n_samples=len(dataset.samples),
        n_tokens=dataset.n_tokens,
        tokenizer=dataset.tokenizer.digest if dataset.tokenizer is not None else "",
        holdout=str(dataset.holdout or ""),
        counts=asdict(dataset.counts),
    )


def _draft_ids(head: RankDescriptor) -> dict[str, tuple[int, ...] | None]:
    """Return which ids make each setter of the served class choose the layers; None where no list of ids does."""
    rules = {name: [OffsetRule(*rule) for rule in given] for name, given in head.setters.items()}
    return {name: find_draft_ids(head.all_layers, given, head.num_layers) for name, given in sorted(rules.items())}


def describe_run(job: ExtractionJob, topology: Topology, info: ServerInfo) -> StoreManifest:
    """Return the manifest of a store that this run would begin.

    `sessions` is the store's to give, and `run` where the job names none.
    """
    head = topology.head
    stages = tuple(
        StageStates(stage.pp_rank, tuple(s.name for s in stage_layout(stage, 1).slots if s.name != INPUT_IDS))
        for stage in topology.stages
    )
    return StoreManifest(
        run=job.run or NO_RUN,
        sessions=0,
        tool_version=__version__,
        part_format=job.part_format,
        model=ModelFacts(
            head.model_path,
            head.model_class,
            head.num_layers,
            head.hidden_size,
            head.vocab_size,
            head.context_length,
        ),
        release=head.release,
        source_digest=head.source_digest,
        patch_digest=head.patch_digest,
        way=head.way,
        dtype=head.dtype,
        final=head.final,
        layers=tuple(sorted(head.all_layers)),
        draft_ids=_draft_ids(head),
        pp_size=head.pp_size,
        stages=stages,
        dataset=describe_dataset(job.dataset),
        server_arguments=info.arguments,
        shard=str(job.shard) if job.shard is not None else "",
    )
