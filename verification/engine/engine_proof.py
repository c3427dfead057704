"""The numeric proof: a real patched server, the real extraction path, and transformers on the same weights."""

from collections.abc import Sequence
from pathlib import Path

from auxtap.checkout.source import Source
from auxtap.checkout.worktree import AppliedWorktree, check_applied
from auxtap.core.cache import CacheLayout
from auxtap.rewriters.patch.diff import PatchSet
from auxtap.serving.engine_env import EngineEnvironment, set_up_engine
from auxtap.serving.profile import LaunchSpec
from auxtap.serving.server import Progress, be_silent
from auxtap.verification.engine.engine_cases import CasePlan, EngineCase, check_cases, engine_cases, model_modules
from auxtap.verification.engine.engine_report import TOLERANCE as TOLERANCE
from auxtap.verification.engine.engine_report import CaseResult, EngineReport, judge
from auxtap.verification.engine.engine_run import CaseRun, run_case
from auxtap.verification.engine.engine_run import write_dataset as write_dataset
from auxtap.verification.engine.engine_settings import SETTINGS
from auxtap.verification.engine.fork_server import ForkServer
from auxtap.verification.engine.reference import Comparison, compare_stores
from auxtap.verification.engine.run_folder import apply_in, run_folder
from auxtap.verification.engine.tiny_models import TINY_LAYERS, make_tiny_models
from auxtap.verification.proof.proof_level import ProvedCase


def prove_patch(
    source: Source,
    patch_set: PatchSet,
    cache: CacheLayout,
    *,
    cases: Sequence[EngineCase] | CasePlan | None = None,
    progress: Progress = be_silent,
) -> EngineReport:
    """Prove a patch in a worktree that is made for it and removed again; sets up what is missing.

    Without `cases` they are the quick ones of the release.

    Raises:
        UsageError: a case names an unknown model or setting.
        AuxtapError: environment, models, worktree or import of SGLang fail; a case that fails is in the report.
    """
    plan = _plan(engine_cases(source.tree) if cases is None else cases)
    engine = set_up_engine(source.tree.release, cache, progress=progress)
    with run_folder(cache) as folder:
        applied = apply_in(folder, source, patch_set)
        return verify_engine(applied, engine, cache, cases=plan, progress=progress)


def verify_engine(
    applied: AppliedWorktree,
    engine: EngineEnvironment,
    cache: CacheLayout,
    *,
    cases: Sequence[EngineCase] | CasePlan,
    progress: Progress = be_silent,
) -> EngineReport:
    """Prove the patched tree `applied` case by case.

    Raises:
        UsageError: a case names an unknown model or setting.
        AuxtapError: the worktree was changed, the models cannot be made, or SGLang cannot be imported.
    """
    plan = _plan(cases)
    check_applied(applied.path)
    with run_folder(cache) as work:
        runs = run_cases(applied, engine, cache, plan.cases, work, progress)
        progress("computing the reference")
        results = compare_runs(runs, engine.python, applied.release)
    return EngineReport(applied.release, applied.patch_digest, TOLERANCE, results, plan.left_out)


def _plan(cases: Sequence[EngineCase] | CasePlan) -> CasePlan:
    plan = cases if isinstance(cases, CasePlan) else CasePlan(tuple(cases), ())
    check_cases(plan.cases)
    return plan


def run_cases(
    applied: AppliedWorktree,
    engine: EngineEnvironment,
    cache: CacheLayout,
    cases: Sequence[EngineCase],
    work: Path,
    progress: Progress = be_silent,
) -> list[CaseRun]:
    """Serve and extract every case, one after the other, from one import of SGLang; stores lie in `work`."""
    models = {m.name: m for m in make_tiny_models([case.model for case in cases], engine, cache, progress)}
    template = launch_template(applied, engine, cache, work / "spool")
    progress(f"importing SGLang {applied.release}")
    with ForkServer(template) as fork_server:
        return [run_case(case, models[case.model], fork_server, template, work, progress) for case in cases]


def compare_runs(runs: Sequence[CaseRun], reference_python: Path, release: str) -> tuple[CaseResult, ...]:
    """Hold every store against the reference and judge its states; a run with a problem keeps it."""
    extracted = [run for run in runs if run.problem is None]
    compared = compare_stores([run.pair for run in extracted], reference_python) if extracted else ()
    comparisons = dict(zip((run.case for run in extracted), compared, strict=True))
    results = []
    for run in runs:
        comparison = comparisons.get(run.case)
        if isinstance(comparison, Comparison):
            setting = SETTINGS[run.case.setting]
            cells = judge(run.case, release, comparison, setting.states, setting.n_tokens)
            counted = (comparison.samples, comparison.tokens, run.ready_s)
            results.append(CaseResult(run.case, *counted, cells, stand_ins=run.model.stand_ins))
        else:
            problem = comparison.problem if comparison is not None else run.problem
            results.append(CaseResult(run.case, 0, 0, run.ready_s, (), problem, run.model.stand_ins))
    return tuple(results)


def summarize_cases(report: EngineReport) -> tuple[ProvedCase, ...]:
    """Return each case of a report that holds, in one line."""
    return tuple(
        ProvedCase(
            model=result.case.model,
            modules=model_modules(result.case.model),
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
        log=cache.logs / f"verify-{applied.release}-import.log",
        bytecode=cache.bytecode / f"sglang-{applied.release}",
    )
