"""`auxtap verify`: prove a patch."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auxtap.commands import numeric
from auxtap.commands.context import cache_layout
from auxtap.commands.patching import DEFAULT_LAYERS, DEFAULT_MODELS
from auxtap.core.errors import CheckFailedError, UsageError

if TYPE_CHECKING:
    from auxtap.checkout.publication import PublishedPatch
    from auxtap.checkout.source import Source
    from auxtap.commands.patching import Wanted
    from auxtap.verification.engine.engine_report import EngineReport
    from auxtap.verification.static.verdicts import Proof


@dataclass(frozen=True)
class _Judged:
    """A patch after its static proof: where it belongs and what it was made of."""

    source: "Source"
    models: tuple[str, ...]
    layers: tuple[int, ...]
    proof: "Proof"
    patch: bytes


def verify(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="PATCH|SOURCE", help="A written patch or its folder, or a source.")],
    source: Annotated[
        str | None, typer.Option(help="The tree that PATCH is for. [default: the release that its manifest names]")
    ] = None,
    engine: Annotated[bool, typer.Option("--engine", help="Add the numeric proof on the CPU engine.")] = False,
    matrix: Annotated[bool, typer.Option("--matrix", help="Serve every tiny model under every setting.")] = False,
    models: Annotated[str | None, typer.Option(help=numeric.MODELS_HELP)] = None,
    settings: Annotated[str | None, typer.Option(help=numeric.SETTINGS_HELP)] = None,
    record: Annotated[
        Path | None,
        typer.Option(metavar="generated", help="Keep a numeric proof that holds in this folder's engine_proofs.json."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(metavar="docs", help="Keep the result in this folder's engine-matrix.md.")
    ] = None,
    layers: Annotated[str, typer.Option(help="Capture indices, for a SOURCE.")] = DEFAULT_LAYERS,
    model: Annotated[str, typer.Option(help="Models, for a SOURCE.")] = DEFAULT_MODELS,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Prove that a patch does what it says and nothing else."""
    from auxtap.commands import patching
    from auxtap.commands.views import console, engine_view, patch_view

    choice = numeric.NumericChoice(engine, matrix, models, settings, record, table)
    choice.check()
    judged = _judge(target, source, patching.wanted(context, model, layers, ""))
    proof = judged.proof
    report = _engine_report(judged, choice) if engine and proof.holds else None
    if json_output:
        shown = {"target": target, **patching.proof_record(proof)}
        console.emit_json(shown if report is None else {**shown, "engine": numeric.engine_record(report)})
    else:
        tables = [] if report is None else [engine_view.proof_table(numeric.proof_rows(report), report.tolerance)]
        patch_view.show(patch_view.checks_table(patching.check_rows(proof)), *tables)
    if not proof.holds:
        names = [verdict.check for verdict in proof.rejected]
        raise CheckFailedError(
            patching.refusal(names, f" for {target}"), hint="auxtap patch SOURCE writes a patch that fits its source"
        )
    if report is not None:
        numeric.check_report(report)


def _judge(target: str, source: str | None, wanted: "Wanted") -> _Judged:
    from auxtap.checkout.publication import find_patch, read_published
    from auxtap.commands import patching
    from auxtap.commands.views.console import say
    from auxtap.rewriters.patch.named_models import require_captured
    from auxtap.rewriters.patch.plan import plan_capture
    from auxtap.rewriters.patch.registry import DEFAULT_MODELS
    from auxtap.tracer.reading.trees import Readings
    from auxtap.verification.proof.proved import refused_models
    from auxtap.verification.static.static import verify_static

    files = find_patch(Path(target).expanduser())
    if files is None:
        if source is not None:
            raise UsageError(f"{target} is not a written patch, so --source has no place", hint="leave --source out")
        proved = patching.prove_source(target, wanted)
        plan = proved.patch_set.plan
        return _Judged(proved.source, plan.models, plan.layers, proved.proof, proved.patch_set.patch)
    published = read_published(files)
    manifest = published.manifest
    opened = _source_of(published, source)
    say(f"proving {files.patch} on SGLang {opened.tree.release} ({opened.tree.origin})")
    readings = Readings(cache_layout().readings)
    proof = verify_static(opened, published.patch, manifest, readings)
    if proof.holds and manifest.models != DEFAULT_MODELS:
        plan = plan_capture(opened.tree, manifest.models, manifest.layers, readings)
        require_captured(refused_models(opened.tree, plan), manifest.release, "")
    return _Judged(opened, manifest.models, manifest.layers, proof, published.patch)


def _engine_report(judged: _Judged, choice: numeric.NumericChoice) -> "EngineReport":
    from auxtap.rewriters.patch.diff import write_patch
    from auxtap.rewriters.patch.plan import plan_capture
    from auxtap.tracer.reading.trees import Readings

    # The static proof has shown that writing the patch again gives the same bytes.
    tree, readings = judged.source.tree, Readings(cache_layout().readings)
    patch_set = write_patch(tree, plan_capture(tree, judged.models, judged.layers, readings))
    report = numeric.prove_numerically(judged.source, patch_set, choice)
    if choice.record is not None and report.holds:
        _keep(judged, report, choice.record)
    return report


def _keep(judged: _Judged, report: "EngineReport", folder: Path) -> None:
    from auxtap.commands.views.console import say
    from auxtap.verification.engine.engine_proof import summarize_cases
    from auxtap.verification.proof.proof_level import EngineProof, keep_proof, proved_code

    source = judged.source
    not_run = tuple(str(case) for case in report.not_run)
    cases = summarize_cases(report)
    proof = EngineProof(proved_code(judged.patch, cases), source.digest, cases, not_run)
    say(f"kept in {keep_proof(folder, source.tree.release, proof)}")


def _source_of(published: "PublishedPatch", source: str | None) -> "Source":
    from auxtap.checkout.source import open_source
    from auxtap.commands.views.console import say

    manifest = published.manifest
    if source is None and manifest.origin.kind != "pypi":
        raise UsageError(
            f"{published.files.patch} was written for a {manifest.origin.kind} of SGLang {manifest.release}",
            hint="name that tree with --source",
        )
    return open_source(source or f"pypi:{manifest.release}", cache_layout(), say)
