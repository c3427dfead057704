"""Say beforehand what an extraction will take: tokens, bytes, room, time."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from auxtap.core.errors import UsageError
from auxtap.extraction.datasets.reading import Dataset, DatasetSurvey
from auxtap.extraction.spool.topology import Topology, stage_layout
from auxtap.extraction.store.formats.stored_part import stored_content
from auxtap.extraction.store.store import part_metadata
from auxtap.tap.protocol import DTYPE_BYTES, RankDescriptor, best_digest, blank_digest, encode_header

# What a sample takes besides its parts: its ledger line.
LEDGER_LINE_BYTES = 1024
# What torch.save adds to the bytes of a part, at most.
_TORCH_FRAME_BYTES = 8192
_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", **{name: name for name in ("F32", "BF16", "F16")}}
# How many layers a drafter is given when nobody says (EAGLE-3: low, middle, high).
USUAL_LAYERS = 3


@dataclass(frozen=True)
class Bin:
    """So many samples have `low` to `high` tokens, both included."""

    low: int
    high: int
    n_samples: int


@dataclass(frozen=True)
class Room:
    """Bytes that are free in a place; None where that is not known."""

    spool: int | None
    store: int | None
    same_device: bool = False


@dataclass(frozen=True)
class ExtractionPlan:
    """What an extraction will take.

    `store_bytes` is the whole store when it is done, `needed_bytes` what of it is not there yet;
    `bytes_per_token` counts states only. `obstacle` says why it must not be begun.
    """

    n_samples: int
    n_tokens: int
    shortest: int
    median: int
    longest: int
    histogram: tuple[Bin, ...]
    bytes_per_token: int
    state_bytes: int
    mean_sample_bytes: int
    largest_sample_bytes: int
    store_bytes: int
    needed_bytes: int
    peak_spool_bytes: int
    spool_free: int | None
    store_free: int | None
    already_stored: int
    too_long: int
    longest_allowed: int | None
    bad_lines: int
    first_bad: tuple[str, ...]
    repeated: int
    duplicates: int
    left_out_too_long: int
    cut: int
    held_out: int
    tokens_per_s: float | None
    estimated_s: float | None
    obstacle: str | None


@dataclass(frozen=True)
class Bounds:
    """What an extraction may take: the store's bytes at the end, and bytes that stay free beside it."""

    max_bytes: int | None = None
    reserve_bytes: int = 0


def make_plan(
    survey: DatasetSurvey,
    topology: Topology,
    *,
    slots: int,
    room: Room,
    bounds: Bounds,
    longest_prompt: int | None = None,
    stored_ids: frozenset[str] = frozenset(),
    spool_budget: int | None = None,
    part_format: str = "safetensors",
    tokens_per_s: float | None = None,
) -> ExtractionPlan:
    """Work out a plan; `slots` samples are in flight or not yet drained at a time."""
    samples = survey.dataset.samples
    allowed = [s for s in samples if longest_prompt is None or s.n_tokens <= longest_prompt]
    lengths = sorted(sample.n_tokens for sample in samples) or [0]
    sizes = {sample.index: stored_bytes(topology, sample.index, sample.sample_id, sample.n_tokens, part_format)
             for sample in allowed}  # fmt: skip
    pending = [sample for sample in allowed if sample.sample_id not in stored_ids]
    needed = sum(sizes[sample.index] + LEDGER_LINE_BYTES for sample in pending)
    total = sum(sizes.values()) + LEDGER_LINE_BYTES * len(allowed)
    in_spool = sorted((topology.spool_bytes(sample.n_tokens) for sample in pending), reverse=True)
    peak = sum(in_spool[:slots])
    if spool_budget is not None:
        peak = min(peak, spool_budget)
    per_token = bytes_per_token(topology)
    tokens_left = sum(sample.n_tokens for sample in pending)
    return ExtractionPlan(
        n_samples=len(samples),
        n_tokens=sum(lengths),
        shortest=lengths[0],
        median=lengths[len(lengths) // 2],
        longest=lengths[-1],
        histogram=histogram(lengths),
        bytes_per_token=per_token,
        state_bytes=per_token * sum(sample.n_tokens for sample in allowed),
        mean_sample_bytes=sum(sizes.values()) // max(1, len(sizes)),
        largest_sample_bytes=max(sizes.values(), default=0),
        store_bytes=total,
        needed_bytes=needed,
        peak_spool_bytes=peak,
        spool_free=room.spool,
        store_free=room.store,
        already_stored=len(allowed) - len(pending),
        too_long=len(samples) - len(allowed),
        longest_allowed=longest_prompt,
        bad_lines=survey.dataset.counts.bad,
        first_bad=tuple(str(record) for record in survey.bad[:5]),
        repeated=survey.n_repeated,
        duplicates=survey.dataset.counts.duplicates,
        left_out_too_long=survey.dataset.counts.too_long,
        cut=survey.dataset.counts.cut,
        held_out=survey.dataset.counts.held_out,
        tokens_per_s=tokens_per_s,
        estimated_s=tokens_left / tokens_per_s if tokens_per_s else None,
        obstacle=find_obstacle(
            needed=needed,
            total=total,
            largest_in_spool=in_spool[0] if in_spool else 0,
            peak_spool=peak,
            room=room,
            bounds=bounds,
        ),
    )


def find_obstacle(
    *, needed: int, total: int, largest_in_spool: int, peak_spool: int, room: Room, bounds: Bounds
) -> str | None:
    """Say why an extraction would run out of room, None when it would not."""
    if bounds.max_bytes is not None and total > bounds.max_bytes:
        return f"the store would take {total:,} bytes, more than the bound of {bounds.max_bytes:,}"
    if room.spool is not None and largest_in_spool > room.spool:
        return f"the largest sample takes {largest_in_spool:,} bytes of spool, {room.spool:,} are free"
    if room.store is not None:
        wanted = needed + bounds.reserve_bytes + (peak_spool if room.same_device else 0)
        if wanted > room.store:
            beside = f" and {bounds.reserve_bytes:,} are to stay free" if bounds.reserve_bytes else ""
            shared = f" (its spool is on the same disk and takes up to {peak_spool:,})" if room.same_device else ""
            return f"the store needs {needed:,} more bytes{beside}, {room.store:,} are free{shared}"
    return None


def stored_bytes(topology: Topology, index: int, sample_id: str, n_tokens: int, part_format: str) -> int:
    """Return what the files of a sample take in the store."""
    total = 0
    digest = blank_digest(best_digest())
    for stage in topology.stages:
        metadata = part_metadata(index, sample_id, stage.pp_rank, digest)
        content = stored_content(stage_layout(stage, n_tokens), metadata)
        total += len(encode_header(content.slots, metadata)) + sum(slot.n_bytes for slot in content.slots)
        total += _TORCH_FRAME_BYTES if part_format == "pt" else 0
    return total


def bytes_per_token(topology: Topology) -> int:
    """Return the bytes of one token's states: (layers + final states) x hidden size x bytes of the dtype."""
    n_states = sum(len(stage.layers) + len(stage.final_tensors) for stage in topology.stages)
    return n_states * topology.head.hidden_size * DTYPE_BYTES[topology.head.dtype]


def histogram(lengths: Sequence[int]) -> tuple[Bin, ...]:
    """Count ascending `lengths` in bins whose bounds double: 1, 2-3, 4-7 and so on."""
    bins: list[Bin] = []
    for length in lengths:
        low = 1 << (max(1, length).bit_length() - 1)
        if bins and bins[-1].low == low:
            bins[-1] = Bin(low, 2 * low - 1, bins[-1].n_samples + 1)
        else:
            bins.append(Bin(low, 2 * low - 1, 1))
    return tuple(bins)


def supposed_topology(hidden_size: int, layers: tuple[int, ...], dtype: str, context_length: int = 1 << 40) -> Topology:
    """Return the writer that a server of one stage would have, for a plan without a server.

    Raises:
        UsageError: the dtype is none that the tap writes, or the hidden size is no size.
    """
    if dtype not in _DTYPES:
        raise UsageError(f"states of dtype {dtype!r} are not supported", hint=f"one of {', '.join(_DTYPES)}")
    if hidden_size < 1:
        raise UsageError(f"the hidden size is {hidden_size}", hint="give --hidden-size a number above 0")
    writer = RankDescriptor(
        host="", pid=0, nonce="0" * 16, pp_rank=0, pp_size=1, dp_rank=0, dp_size=1, tp_size=1, layers=layers,
        all_layers=layers, has_final=True, num_layers=max(layers) + 1, hidden_size=hidden_size,
        vocab_size=1 << 31, context_length=context_length, dtype=_DTYPES[dtype], model_class="", model_path="",
        release="", patch_digest="", source_digest="",
    )  # fmt: skip
    return Topology((writer,))


def topology_of_config(path: Path, layers: tuple[int, ...] | None, dtype: str | None) -> Topology:
    """Return the writer that a server of a model folder's `config.json` would have.

    Raises:
        UsageError: there is none, or it does not name its hidden size.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file}: {error}", hint="name a model folder with a config.json") from None
    text: Mapping[str, Any] = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    size = text.get("hidden_size")
    if type(size) is not int:
        raise UsageError(f"{file} names no hidden_size", hint="give --hidden-size")
    found = dtype or next((d[k] for d in (text, config) for k in ("dtype", "torch_dtype") if d.get(k)), "bfloat16")
    limit = text.get("max_position_embeddings")
    return supposed_topology(
        size, layers or tuple(range(1, USUAL_LAYERS + 1)), str(found), limit if type(limit) is int else 1 << 40
    )


def look_for_room(spool: Path | None, store: Path | None) -> Room:
    """Ask the file systems; a store that is not there yet lies where its nearest folder does."""
    folder = store.absolute() if store is not None else None
    while folder is not None and not folder.exists():
        folder = folder.parent
    spool_there = spool is not None and spool.is_dir()
    return Room(
        spool=shutil.disk_usage(spool).free if spool is not None and spool_there else None,
        store=shutil.disk_usage(folder).free if folder is not None else None,
        same_device=bool(
            spool is not None and spool_there and folder is not None and spool.stat().st_dev == folder.stat().st_dev
        ),
    )


def some_samples(dataset: Dataset, n_samples: int, longest: int | None) -> Dataset:
    """Return samples of all lengths, for a calibration."""
    allowed = [sample for sample in dataset.samples if longest is None or sample.n_tokens <= longest]
    by_length = sorted(allowed, key=lambda sample: (sample.n_tokens, sample.index))
    step = max(1, len(by_length) // n_samples)
    chosen = by_length[step // 2 :: step][:n_samples] or by_length[:n_samples]
    return replace(dataset, digest=f"{dataset.digest}/calibration", samples=tuple(chosen))
