"""What the commands about patches have in common: options, opening, rows and records."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from auxtap.commands.context import cache_layout, parse_layers

if TYPE_CHECKING:
    from auxtap.commands.views.patch_view import CheckRow, DecisionRow, InsertionRow, PatchRow
    from auxtap.rewriters.patch.plan import CapturePlan
    from auxtap.verification.proof.proof_level import ProofLevel
    from auxtap.verification.proof.proved import ProvedPatch
    from auxtap.verification.static.verdicts import Proof

DEFAULT_LAYERS = "3,31,59"
DEFAULT_MODELS = "deepseek,llama"
LAYERS_HELP = "Capture indices that a server taps by default; the patch itself names none."
MODELS_HELP = "Models whose pipeline stages are tapped: names of files below models/, or all."


def prove_source(source: str, layers: str, model: str) -> "ProvedPatch":
    """Open a source, write its patch and judge it."""
    from auxtap.checkout.source import open_source
    from auxtap.commands.views.console import say
    from auxtap.rewriters.patch.registry import model_files, parse_models
    from auxtap.rewriters.places.syntax import ParsedTree
    from auxtap.tracer.reading.trees import Readings
    from auxtap.verification.proof.proved import prove_patch

    indices, models = parse_layers(layers), parse_models(model)
    layout = cache_layout()
    opened = open_source(source, layout, say)
    model_files(models, ParsedTree(opened.tree))
    say(f"writing and proving the patch for SGLang {opened.tree.release} ({len(opened.tree.files)} files)")
    proved = prove_patch(opened, models, indices, Readings(layout.readings))
    if proved.level.level != "engine-proved":
        say(f"this patch has a static proof only: {proved.level.why}")
    return proved


def check_rows(proof: "Proof") -> "list[CheckRow]":
    """Return the checks as they are shown."""
    from auxtap.commands.views.patch_view import CheckRow
    from auxtap.verification.static.verdicts import Verified

    return [CheckRow(verdict.check, isinstance(verdict, Verified), verdict.detail) for verdict in proof.verdicts]


def insertion_rows(plan: "CapturePlan") -> "list[InsertionRow]":
    """Return the inserted lines as they are shown."""
    from auxtap.commands.views.patch_view import InsertionRow
    from auxtap.core.source_tree import SRT_ROOT

    return [
        InsertionRow(each.kind, str(each.path.relative_to(SRT_ROOT)), each.line, each.scope, each.anchor)
        for each in plan.insertions
    ]


def decision_rows(plan: "CapturePlan") -> "list[DecisionRow]":
    """Return the hazards as they are shown."""
    from auxtap.commands.views.patch_view import DecisionRow

    return [DecisionRow(decision.hazard, decision.verdict, " ".join(decision.flags)) for decision in plan.decisions]


def patch_row(proved: "ProvedPatch") -> "PatchRow":
    """Return what a patch comes to as it is shown."""
    from auxtap.commands.views.patch_view import PatchRow

    patch_set = proved.patch_set
    return PatchRow(
        release=patch_set.plan.release,
        origin=proved.source.tree.origin,
        digest=patch_set.digest,
        n_files=len(patch_set.changes),
        n_inserted=patch_set.n_inserted,
        n_new_files=len(patch_set.new_files),
        models=patch_set.plan.models,
        layers=patch_set.plan.layers,
        proof=level_text(proved.level),
    )


def level_text(level: "ProofLevel") -> str:
    """Return a proof level in one line."""
    models = sorted({case.model for case in level.cases})
    compared = f"{len(level.cases)} servers of {', '.join(models)} compared with transformers" if models else ""
    return f"{level.level} ({'; '.join(part for part in (compared, level.why) if part)})"


def proof_record(proof: "Proof") -> dict[str, Any]:
    """Return a proof as JSON."""
    return {
        "holds": proof.holds,
        "checks": [{"check": row.name, "holds": row.holds, "detail": row.detail} for row in check_rows(proof)],
    }


def patch_record(proved: "ProvedPatch") -> dict[str, Any]:
    """Return a patch and its proof as JSON."""
    row = patch_row(proved)
    return {
        "release": row.release,
        "origin": row.origin,
        "patch_sha256": row.digest,
        "source_digest": proved.source.digest,
        "models": list(row.models),
        "layers": list(row.layers),
        "files": [str(path) for path in proved.patch_set.plan.touched],
        "inserted_lines": row.n_inserted,
        "removed_lines": 0,
        "hazards": [asdict(decision) for decision in proved.patch_set.plan.decisions],
        "new_files": [str(file.path) for file in proved.patch_set.new_files],
        "server_flags": list(proved.patch_set.plan.server_flags),
        "proof": {**proof_record(proved.proof), **proved.level.to_json()},
    }


def refusal(names: Sequence[str], consequence: str) -> str:
    """Return the message for checks that answered no."""
    return f"{len(names)} of the checks answered no ({', '.join(names)}){consequence}"
