"""`auxtap extract --dry-run`: what an extraction will take."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from auxtap.commands.context import parse_layers
from auxtap.core.errors import ExitCode, ExtractionError, UsageError

if TYPE_CHECKING:
    from auxtap.commands.dataset import TokenizerChoice
    from auxtap.commands.extract_places import StorePlace
    from auxtap.extraction.datasets.reading import DatasetRules, DatasetSurvey
    from auxtap.extraction.run.fleet import Fleet
    from auxtap.extraction.run.job import ExtractionJob, ServerPlace
    from auxtap.extraction.spool.topology import Topology


@dataclass(frozen=True)
class Supposed:
    """The model to plan for when there is no server."""

    model: Path | None
    hidden_size: int | None
    layers: str | None
    dtype: str | None


@dataclass(frozen=True)
class Trial:
    """How a calibration is run; `n_samples` of all lengths."""

    n_samples: int
    part_format: str
    concurrency: int
    drain_threads: int
    timeout_s: float
    parts_timeout_s: float


@dataclass(frozen=True)
class _Seen:
    """What was learned of the servers, or supposed."""

    topology: "Topology"
    longest: int | None
    spool_budget: int | None
    tokens_per_s: float | None


def show_dry_run(
    dataset: Path,
    tokenizer: "TokenizerChoice",
    rules: "DatasetRules",
    places: "Sequence[ServerPlace]",
    store: "StorePlace | None",
    supposed: Supposed,
    trial: Trial,
    *,
    as_json: bool,
    max_spool_bytes: int | None,
    max_bytes: int | None,
    reserve_bytes: int,
) -> int:
    """Print the plan; exit 1 when the extraction could not be begun or lines of the dataset are bad."""
    from auxtap.commands.views import plan_view
    from auxtap.extraction.datasets.reading import survey_dataset
    from auxtap.extraction.run.dry_run import Bounds, Room, look_for_room, make_plan

    survey = survey_dataset(dataset, tokenizer.load(), rules)
    seen = _ask_servers(survey, places, store, trial, max_spool_bytes) if places else _suppose(supposed)
    folder = store.folder if store is not None else None
    room = look_for_room(places[0].spools[0] if places else None, folder)
    if store is not None and store.url is not None:
        room = Room(room.spool, None)
    plan = make_plan(
        survey,
        seen.topology,
        slots=max(1, len(places)) * trial.concurrency + trial.drain_threads,
        room=room,
        bounds=Bounds(max_bytes, reserve_bytes),
        longest_prompt=seen.longest,
        stored_ids=_stored_ids(folder) if folder is not None else frozenset(),
        spool_budget=seen.spool_budget if seen.spool_budget is not None else max_spool_bytes,
        part_format=trial.part_format,
        tokens_per_s=seen.tokens_per_s,
    )
    plan_view.show_plan(plan, as_json=as_json)
    stops = plan.bad_lines and rules.on_bad == "stop"
    return ExitCode.CHECK_FAILED if plan.obstacle or stops or not plan.n_samples else ExitCode.DONE


def _suppose(supposed: Supposed) -> _Seen:
    from auxtap.extraction.run.dry_run import supposed_topology, topology_of_config

    layers = parse_layers(supposed.layers) if supposed.layers is not None else None
    if supposed.hidden_size is not None:
        if layers is None:
            raise UsageError("--hidden-size needs --layers", hint="such as --hidden-size 7168 --layers 3,31,59")
        topology = supposed_topology(supposed.hidden_size, layers, supposed.dtype or "bfloat16")
        return _Seen(topology, None, None, None)
    if supposed.model is None:
        raise UsageError(
            "a plan needs to know the model",
            hint="give --server and --spool, or --model DIR, or --hidden-size and --layers",
        )
    topology = topology_of_config(supposed.model, layers, supposed.dtype)
    return _Seen(topology, topology.head.context_length - 1, None, None)


def _ask_servers(
    survey: "DatasetSurvey",
    places: "Sequence[ServerPlace]",
    store: "StorePlace | None",
    trial: Trial,
    max_spool_bytes: int | None,
) -> _Seen:
    import threading

    from auxtap.extraction.run.fleet import open_fleet
    from auxtap.extraction.run.job import ExtractionJob

    first, *others = places
    with tempfile.TemporaryDirectory(prefix=".auxtap-trial-", dir=_folder_for(store)) as folder:
        job = ExtractionJob(
            dataset=survey.dataset,
            server_url=first.url,
            spool=first.spools[0],
            extra_spools=first.spools[1:],
            more_servers=tuple(others),
            store=Path(folder) / "store",
            part_format=trial.part_format,
            concurrency=trial.concurrency,
            drain_threads=trial.drain_threads,
            timeout_s=trial.timeout_s,
            parts_timeout_s=trial.parts_timeout_s,
            max_spool_bytes=max_spool_bytes,
        )
        with open_fleet(job, threading.Event()) as fleet:
            topology, longest = fleet.topology, fleet.longest_prompt
            budget = _budget(fleet)
        rate = _try_out(job, trial.n_samples, longest) if trial.n_samples else None
    return _Seen(topology, longest, budget, rate)


def _budget(fleet: "Fleet") -> int:
    return sum(end.admission.max_bytes for end in fleet.endpoints)


def _folder_for(store: "StorePlace | None") -> Path | None:
    """Return the nearest folder that is there, so that the trial writes where the store will."""
    if store is None or store.url is not None:
        return None
    folder = store.folder.absolute().parent
    while not folder.exists():
        folder = folder.parent
    return folder


def _try_out(job: "ExtractionJob", n_samples: int, longest: int) -> float | None:
    """Extract some samples into a store that is thrown away; return the tokens a second."""
    from dataclasses import replace

    from auxtap.commands.views import console
    from auxtap.extraction.run.driver import run_extraction
    from auxtap.extraction.run.dry_run import some_samples

    some = some_samples(job.dataset, n_samples, longest)
    if not some.samples:
        return None
    console.say(f"trying out {len(some.samples)} samples")
    summary = run_extraction(replace(job, dataset=some))
    if not summary.stored:
        reason = summary.not_stored[0].reason if summary.not_stored else "nothing was stored"
        raise ExtractionError(f"the trial failed: {reason}", hint="look at the server's log")
    return summary.tokens / max(summary.carried_s, 1e-6)


def _stored_ids(store: Path) -> frozenset[str]:
    from auxtap.extraction.store.ledger import STORED, scan_ledger
    from auxtap.extraction.store.store import LEDGER

    lines = scan_ledger(store / LEDGER).last_lines()
    return frozenset(sample_id for sample_id, line in lines.items() if line.fate == STORED)
