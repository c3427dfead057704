"""The canary: a few prompts through the real server before the many, and checks that need no reference model."""

import json
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from auxtap.core.errors import ExtractionError, IntegrityError
from auxtap.extraction.canary.output_head import NoHeadError, find_head
from auxtap.extraction.canary.server_logprobs import NoLogprobsError, ask_logprobs
from auxtap.extraction.canary.state_checks import (
    FAILED,
    FINAL,
    FINAL_PRENORM,
    OK,
    SKIPPED,
    Check,
    check_distinct,
    check_growth,
    check_logits,
    check_norm,
    check_ranks,
    check_rows,
    compare_prompts,
    judge_difference,
)
from auxtap.extraction.canary.stored_states import PromptStates, read_states
from auxtap.extraction.canary.witness_reports import (
    WitnessReport,
    new_canary_run,
    take_witness_reports,
    witnesses_a_group,
)
from auxtap.extraction.datasets.reading import Dataset, read_dataset
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.extraction.run.job import ServerPlace
from auxtap.extraction.servers.client import ServerClient, ServerInfo
from auxtap.extraction.spool.topology import Topology, open_replicas, read_topology

LONGEST_PROMPT = 512
# A prompt of one chunk and a half is sent only where that is no longer than this.
LONGEST_CUT_PROMPT = 4096
SEED = 11
EMBEDDING = Check("embedding", SKIPPED, "capture index 0 is never captured: the tap refuses it")


@dataclass(frozen=True)
class CanaryTarget:
    """One server, its spools, and the checkpoint it serves (None: where the server says it lies)."""

    place: ServerPlace
    model_path: Path | None = None
    timeout_s: float = 600.0
    parts_timeout_s: float = 60.0


@dataclass(frozen=True)
class CanaryReport:
    """What a canary found on one server."""

    url: str
    n_prompts: int
    n_tokens: int
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether no check failed."""
        return all(check.outcome != FAILED for check in self.checks)

    def in_a_line(self) -> str:
        """Say what was checked and found right, and what was not checked."""
        passed, skipped = (
            ", ".join(check.name for check in self.checks if check.outcome == outcome) for outcome in (OK, SKIPPED)
        )
        without = f"; not checked: {skipped}" if skipped else ""
        return f"canary on {self.url}: {passed} are right ({self.n_tokens} tokens){without}"

    def require(self) -> None:
        """Refuse states that a check speaks against.

        Raises:
            IntegrityError: a check failed.
        """
        failed = [check for check in self.checks if check.outcome == FAILED]
        if failed:
            raise IntegrityError(
                f"the canary on {self.url} failed: {', '.join(check.name for check in failed)}: {failed[0].detail}",
                hint="nothing was extracted: states like these would train a wrong drafter",
            )


@dataclass(frozen=True)
class _Server:
    """What the server and its writers say of themselves."""

    topology: Topology
    info: ServerInfo

    @property
    def states(self) -> list[str]:
        """The names of all states, ascending."""
        finals = self.topology.stages[-1].final_tensors
        return [*(f"hidden.{layer}" for layer in self.topology.head.all_layers), *finals]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt that it takes."""
        return min(self.topology.head.context_length - 1, self.info.longest_prompt or 1 << 62)

    @property
    def chunk(self) -> int | None:
        """Tokens of a prefill chunk, None where prompts are not cut."""
        size = self.info.arguments.get("chunked_prefill_size")
        return size if isinstance(size, int) and size > 0 else None


def run_canary(
    target: CanaryTarget,
    n_prompts: int,
    dataset: Dataset | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> CanaryReport:
    """Send `n_prompts` of `dataset`, or random ones, three times, and check what came of them.

    Raises:
        ServerError: the server cannot be reached.
        ExtractionError: its spool cannot be used, or the dataset is of another vocabulary.
    """
    server = _look_at(target)
    if dataset is not None:
        dataset.check_vocabulary(server.topology.head.vocab_size)
    prompts = choose_prompts(n_prompts, dataset, server.topology.head.vocab_size, server.longest)
    cut = cut_prompts(prompts, server.chunk, server.longest)
    prompts = [*prompts, *cut]
    with tempfile.TemporaryDirectory(prefix="auxtap-canary-") as folder:
        runs = _Runs(target, Path(folder), prompts)
        try:
            progress("canary: one prompt at a time")
            alone = runs.extract("alone", 1)
            progress("canary: all prompts at once")
            together = runs.extract("together", len(prompts))
            progress("canary: once more")
            again = runs.extract("again", 1)
        except _IncompleteError as error:
            checks: tuple[Check, ...] = (Check("rows", FAILED, str(error)),)
        else:
            checks = _check_all(target, server, prompts, len(cut), (alone, together, again))
    return CanaryReport(target.place.url, len(prompts), sum(map(len, prompts)), checks)


def _look_at(target: CanaryTarget) -> _Server:
    with ServerClient(target.place.url, connections=1, timeout_s=target.timeout_s) as client:
        info = client.read_info()
    with open_replicas(target.place.spools) as replicas:
        return _Server(read_topology(replicas[0]), info)


def choose_prompts(count: int, dataset: Dataset | None, vocab_size: int, longest: int) -> list[list[int]]:
    """Return prompts spread over a dataset, each cut to what a canary needs, or random ones of many lengths."""
    limit = min(LONGEST_PROMPT, longest)
    if dataset is not None:
        step = max(1, len(dataset.samples) // count)
        return [list(sample.token_ids())[:limit] for sample in dataset.samples[::step][:count]]
    dice = random.Random(SEED)  # noqa: S311
    lengths = [1, 2, *(dice.randint(3, limit) for _ in range(count))][:count]
    return [[dice.randrange(vocab_size) for _ in range(min(length, limit))] for length in lengths]


def cut_prompts(prompts: Sequence[Sequence[int]], chunk: int | None, longest: int) -> list[list[int]]:
    """Return a prompt that is cut for certain and its first chunk alone; none where it would be too long."""
    if chunk is None or chunk + chunk // 2 > min(longest, LONGEST_CUT_PROMPT):
        return []
    ids = [token for prompt in prompts for token in prompt]
    long = (ids * ((chunk + chunk // 2) // len(ids) + 1))[: chunk + chunk // 2]
    return [long, long[:chunk]]


class _IncompleteError(Exception):
    """A prompt's states did not come; says why."""


@dataclass(frozen=True)
class _Run:
    """The states of all prompts, and what the other ranks saw of them."""

    prompts: tuple[PromptStates, ...]
    witness_reports: tuple[WitnessReport, ...]


@dataclass(frozen=True)
class _Runs:
    """Extractions of the same prompts, each into a store of its own below `folder`."""

    target: CanaryTarget
    folder: Path
    prompts: Sequence[Sequence[int]]

    def extract(self, name: str, concurrency: int) -> _Run:
        """Bring all prompts through the server.

        Raises:
            _IncompleteError: one was not stored, or the tap complains.
        """
        data = self.folder / f"{name}.jsonl"
        lines = [{"id": str(number), "input_ids": list(ids)} for number, ids in enumerate(self.prompts)]
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        place = self.target.place
        job = ExtractionJob(
            dataset=read_dataset(data),
            server_url=place.url,
            spool=place.spools[0],
            extra_spools=place.spools[1:],
            store=self.folder / name,
            concurrency=concurrency,
            timeout_s=self.target.timeout_s,
            parts_timeout_s=self.target.parts_timeout_s,
            max_tries=1,
            run=new_canary_run(),
            reserve_bytes=0,
        )
        try:
            summary = run_extraction(job)
        except ExtractionError as error:
            raise _IncompleteError(error.message) from None
        witness_reports = take_witness_reports(place.spools, job.run or "")
        if not summary.complete:
            reasons = [fate.reason for fate in summary.not_stored] or [summary.tap_last_error]
            raise _IncompleteError(f"{summary.stored} of {summary.n_samples} prompts came whole: {reasons[0]}")
        return _Run(read_states(job.store), witness_reports)


def _check_all(
    target: CanaryTarget, server: _Server, prompts: Sequence[Sequence[int]], n_cut: int, runs: tuple[_Run, _Run, _Run]
) -> tuple[Check, ...]:
    alone, together, again = runs
    dtype = server.topology.head.dtype
    rows = check_rows(alone.prompts, dict(enumerate(prompts)), server.states)
    if rows.outcome == FAILED:
        return (rows,)
    at_once = compare_prompts(list(zip(alone.prompts, together.prompts, strict=True)))
    return (
        rows,
        EMBEDDING,
        judge_difference("batches", at_once, dtype, "one prompt at a time and all at once"),
        _check_chunks(server, alone, together, n_cut, dtype),
        check_ranks(
            alone.prompts,
            alone.witness_reports,
            witnesses_a_group(server.topology, server.info),
            len(server.topology.stages),
            dtype,
            several_hosts=int(server.info.arguments.get("nnodes") or 1) > 1,
        ),
        _check_head(target, server, alone.prompts, dtype),
        _check_norm(server, alone.prompts, dtype),
        check_growth(alone.prompts),
        check_distinct(alone.prompts),
        _check_again(alone, again, dtype),
    )


def _check_chunks(server: _Server, alone: _Run, together: _Run, n_cut: int, dtype: str) -> Check:
    if server.chunk is None:
        return Check("chunks", SKIPPED, "chunked prefill is off")
    if not n_cut:
        text = f"a prompt of one chunk and a half ({server.chunk + server.chunk // 2} tokens) is too long for a canary"
        return Check("chunks", SKIPPED, text)
    long, first = alone.prompts[-2:]
    n_rows = {long.index: server.chunk}
    before = judge_difference(
        "chunks", compare_prompts([(long, first)], n_rows), dtype, "a chunk and the same rows uncut"
    )
    if before.outcome == FAILED:
        return before
    elsewhere = compare_prompts([(long, together.prompts[-2])])
    return judge_difference(
        "chunks", elsewhere, dtype, f"{len(long.ids)} tokens cut after {server.chunk} and elsewhere"
    )


def _check_again(alone: _Run, again: _Run, dtype: str) -> Check:
    same = all(one.data == other.data for one, other in zip(alone.prompts, again.prompts, strict=True))
    if same:
        return Check("again", "ok", "a second run gives the same bytes")
    worst = compare_prompts(list(zip(alone.prompts, again.prompts, strict=True)))
    return judge_difference("again", worst, dtype, "a second run gives other bytes")


def _check_norm(server: _Server, prompts: Sequence[PromptStates], dtype: str) -> Check:
    if {FINAL, FINAL_PRENORM} <= set(server.states):
        return check_norm(prompts, dtype)
    return Check("norm", SKIPPED, "one final state alone is captured: --final both takes the other too")


def _check_head(target: CanaryTarget, server: _Server, prompts: Sequence[PromptStates], dtype: str) -> Check:
    if FINAL not in server.states:
        return Check("logits", SKIPPED, "the final state after the norm is not captured (--final pre-norm)")
    model = target.model_path or Path(server.topology.head.model_path)
    try:
        head = find_head(model)
        said = ask_logprobs(target.place.url, [p for p in prompts if len(p.ids) <= LONGEST_PROMPT], target.timeout_s)
    except (NoHeadError, NoLogprobsError) as reason:
        return Check("logits", SKIPPED, str(reason))
    return check_logits(prompts, said, head, dtype)
