"""The numeric proof: a real patched server, the real extraction path, and transformers on the same weights."""

import json
import math
import random
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from auxtap.checkout.source import Source
from auxtap.checkout.worktree import AppliedWorktree, apply_patch, check_applied, revert
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import AuxtapError, CheckFailedError, UsageError
from auxtap.extraction.driver import ExtractionJob, run_extraction
from auxtap.extraction.samples import read_dataset
from auxtap.rewriters.diff import PatchSet
from auxtap.serving.engine_env import EngineEnvironment, set_up_engine
from auxtap.serving.processes import choose_port
from auxtap.serving.profile import LOOPBACK, LaunchSpec
from auxtap.serving.server import Progress, be_silent
from auxtap.verification.engine_cases import SETTINGS, EngineCase, engine_cases
from auxtap.verification.fork_server import ForkServer
from auxtap.verification.proof_level import ProvedCase
from auxtap.verification.reference import Comparison, StoreAndModel, compare_stores
from auxtap.verification.tiny_models import TINY_LAYERS, TINY_MODELS, TinyModel, make_tiny_models

# Largest relative error (Frobenius, float32) of a state that counts as equal.
TOLERANCE = 5e-6
READY_TIMEOUT_S = 300.0
# From one token to several chunks of 16, on both sides of a chunk's edge.
SAMPLE_TOKENS = (1, 2, 3, 5, 8, 13, 15, 16, 17, 31, 32, 33, 48, 64, 65, 100, 128, 150, 199, 200)
SEED = 7
# Token ids of the tiny models' printable characters.
FIRST_ID, LAST_ID = 0x20, 0x7E

EQUAL, DIFFERS, INCOMPLETE = "equal", "differs", "incomplete"


# Those of 0.5.9. Kimi-K2.5 cannot run with pipeline stages there: its forward takes no `pp_proxy_tensors`.
DEFAULT_CASES = (
    EngineCase("llama", "default"),
    EngineCase("llama", "chunk16"),
    EngineCase("llama", "pp2"),
    EngineCase("kimi_k25", "default"),
    EngineCase("kimi_k25", "chunk16"),
)


@dataclass(frozen=True)
class CellResult:
    """One state of one case against the reference.

    `max_rel` is the largest relative error (Frobenius) of a sample, None where there is no number; `verdict` is
    equal, differs, or incomplete when a row is missing.
    """

    model: str
    release: str
    setting: str
    state: str
    max_abs: float | None
    max_rel: float | None
    rows: int
    verdict: str


@dataclass(frozen=True)
class CaseResult:
    """One case as a whole; `problem` says why it has no cells."""

    case: EngineCase
    samples: int
    tokens: int
    ready_s: float
    cells: tuple[CellResult, ...]
    problem: str | None = None

    @property
    def holds(self) -> bool:
        """Whether every state was there and equal."""
        return self.problem is None and all(cell.verdict == EQUAL for cell in self.cells)


@dataclass(frozen=True)
class EngineReport:
    """The whole proof."""

    release: str
    patch_digest: str
    tolerance: float
    cases: tuple[CaseResult, ...]

    @property
    def holds(self) -> bool:
        """Whether every case was proved."""
        return bool(self.cases) and all(case.holds for case in self.cases)

    @property
    def cells(self) -> tuple[CellResult, ...]:
        """Every state of every case."""
        return tuple(cell for case in self.cases for cell in case.cells)


def prove_patch(
    source: Source,
    patch_set: PatchSet,
    cache: CacheLayout,
    *,
    cases: Sequence[EngineCase] | None = None,
    progress: Progress = be_silent,
) -> EngineReport:
    """Prove a patch in a worktree that is made for it and removed again; sets up what is missing.

    Without `cases` they are those of the release.

    Raises:
        AuxtapError: environment, models, worktree or import of SGLang fail; a case that fails is in the report.
    """
    cases = engine_cases(source.tree).cases if cases is None else cases
    check_cases(cases)
    engine = set_up_engine(source.tree.release, cache, progress=progress)
    worktree = cache.root / "verification" / f"tree-{secrets.token_hex(4)}"
    applied = apply_patch(source, patch_set, worktree)
    try:
        return verify_engine(applied, engine, cache, cases=cases, progress=progress)
    finally:
        revert(applied.path, force=True)


def verify_engine(
    applied: AppliedWorktree,
    engine: EngineEnvironment,
    cache: CacheLayout,
    *,
    cases: Sequence[EngineCase] = DEFAULT_CASES,
    progress: Progress = be_silent,
) -> EngineReport:
    """Prove the patched tree `applied` case by case.

    Raises:
        UsageError: a case names an unknown model or setting.
        AuxtapError: the worktree was changed, the models cannot be made, or SGLang cannot be imported.
    """
    check_cases(cases)
    check_applied(applied.path)
    models = {m.name: m for m in make_tiny_models([case.model for case in cases], engine, cache, progress)}
    work = cache.root / "verification" / secrets.token_hex(4)
    work.mkdir(parents=True)
    try:
        dataset = write_dataset(work / "dataset.jsonl")
        template = launch_template(applied, engine, cache, work / "spool")
        progress(f"importing SGLang {applied.release}")
        with ForkServer(template) as fork_server:
            runs = [
                _extract_case(case, models[case.model], fork_server, template, dataset, work, progress)
                for case in cases
            ]
        progress("computing the reference")
        results = _compare_runs(runs, engine.python, applied.release)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return EngineReport(applied.release, applied.patch_digest, TOLERANCE, tuple(results))


def check_cases(cases: Sequence[EngineCase]) -> None:
    """Refuse cases that cannot be run.

    Raises:
        UsageError: a case names an unknown model or setting.
    """
    for case in cases:
        if case.model not in TINY_MODELS or case.setting not in SETTINGS:
            raise UsageError(
                f"no engine case {case.model}/{case.setting}",
                hint=f"models: {', '.join(TINY_MODELS)}; settings: {', '.join(SETTINGS)}",
            )


def summarize_cases(report: EngineReport) -> tuple[ProvedCase, ...]:
    """Return each case of a report that holds, in one line."""
    return tuple(
        ProvedCase(
            model=result.case.model,
            setting=result.case.setting,
            states=len(result.cells),
            rows=min(cell.rows for cell in result.cells),
            # Two digits: the rest is noise of the machine's arithmetic.
            max_rel=float(f"{max(cell.max_rel or 0.0 for cell in result.cells):.1e}"),
        )
        for result in report.cases
        if result.holds
    )


def launch_template(applied: AppliedWorktree, engine: EngineEnvironment, cache: CacheLayout, spool: Path) -> LaunchSpec:
    """Return what all servers of a patched tree share; model, port and log are each server's own."""
    return LaunchSpec(
        python=engine.python,
        tree=applied.path,
        model_path="",
        port=0,
        spool=spool,
        layers=TINY_LAYERS,
        cpu=True,
        required_arguments=applied.server_flags,
        release=applied.release,
        patch_digest=applied.patch_digest,
        source_digest=applied.source_digest,
        log=cache.logs / "verify-import.log",
        bytecode=cache.bytecode / f"sglang-{applied.release}",
    )


def write_dataset(path: Path, n_tokens: Sequence[int] = SAMPLE_TOKENS) -> Path:
    """Write one sample of random token ids for each length; the same every time."""
    dice = random.Random(SEED)  # noqa: S311
    with path.open("w") as file:
        for number, length in enumerate(n_tokens):
            ids = [dice.randint(FIRST_ID, LAST_ID) for _ in range(length)]
            file.write(json.dumps({"id": f"random-{number}-{length}", "input_ids": ids}) + "\n")
    return path


@dataclass(frozen=True)
class _Run:
    """An extraction that is to be compared, or the problem that it had."""

    case: EngineCase
    pair: StoreAndModel
    ready_s: float
    problem: str | None


def _extract_case(
    case: EngineCase,
    model: TinyModel,
    fork_server: ForkServer,
    template: LaunchSpec,
    dataset: Path,
    work: Path,
    progress: Progress,
) -> _Run:
    name = f"{case.model}-{case.setting}"
    progress(f"{name}: serving and extracting")
    pair = StoreAndModel(work / name, model.path)
    spec = replace(
        template,
        model_path=str(model.path),
        port=choose_port(LOOPBACK, 0),
        spool=work / f"spool-{name}",
        log=template.log.with_name(f"verify-{name}.log"),
        extra_arguments=(*SETTINGS[case.setting], *model.arguments),
    )
    ready_s = 0.0
    try:
        with fork_server.serve(spec) as server:
            ready_s = server.wait_ready(timeout_s=READY_TIMEOUT_S)
            extract_all(spec, dataset, pair.store)
    except AuxtapError as error:
        return _Run(case, pair, ready_s, f"{error.message} (log: {spec.log})")
    return _Run(case, pair, ready_s, None)


def _compare_runs(runs: Sequence[_Run], reference_python: Path, release: str) -> tuple[CaseResult, ...]:
    extracted = [run for run in runs if run.problem is None]
    compared = compare_stores([run.pair for run in extracted], reference_python) if extracted else ()
    comparisons = dict(zip((run.case for run in extracted), compared, strict=True))
    results = []
    for run in runs:
        comparison = comparisons.get(run.case)
        if isinstance(comparison, Comparison):
            cells = judge(run.case, release, comparison, TINY_LAYERS, sum(SAMPLE_TOKENS))
            results.append(CaseResult(run.case, comparison.samples, comparison.tokens, run.ready_s, cells))
        else:
            problem = comparison.problem if comparison is not None else run.problem
            results.append(CaseResult(run.case, 0, 0, run.ready_s, (), problem))
    return tuple(results)


def extract_all(spec: LaunchSpec, dataset: Path, store: Path) -> None:
    """Extract every sample of `dataset` at once through the server of `spec`.

    Raises:
        CheckFailedError: a sample was not stored, or the tap reports an error.
        AuxtapError: the extraction itself fails.
    """
    assert spec.spool is not None
    samples = read_dataset(dataset)
    job = ExtractionJob(samples, spec.url, spec.spool, store, concurrency=len(samples.samples), max_tries=1)
    summary = run_extraction(job)
    if not summary.complete:
        reasons = [fate.reason for fate in summary.not_stored] or [summary.tap_last_error]
        raise CheckFailedError(
            f"{summary.stored} of {summary.n_samples} samples stored, {summary.unattributed} batches unattributed, "
            f"{summary.tap_errors} tap errors: {reasons[0]}"
        )


def judge(
    case: EngineCase, release: str, comparison: Comparison, layers: Sequence[int], n_tokens: int
) -> tuple[CellResult, ...]:
    """Return a verdict for every state that must be there: each row compared, and equal within `TOLERANCE`."""
    found = {state.state: state for state in comparison.states}
    cells = []
    for name in [*(f"hidden.{layer}" for layer in sorted(layers)), "final"]:
        state = found.get(name)
        rows = state.rows if state is not None else 0
        max_abs = state.max_abs if state is not None and math.isfinite(state.max_abs) else None
        max_rel = state.max_rel if state is not None and math.isfinite(state.max_rel) else None
        verdict = EQUAL if max_rel is not None and max_rel <= TOLERANCE else DIFFERS
        if rows != n_tokens:
            verdict = INCOMPLETE
        cells.append(CellResult(case.model, release, case.setting, name, max_abs, max_rel, rows, verdict))
    return tuple(cells)
