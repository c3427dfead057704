"""What the commands about patches have in common: options, opening, rows and records."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from auxtap.commands.context import cache_layout, parse_layers

if TYPE_CHECKING:
    from auxtap.checkout.source import Source
    from auxtap.commands.views.patch_view import CheckRow, DecisionRow, IdsRow, InsertionRow, PatchRow
    from auxtap.rewriters.patch.plan import CapturePlan
    from auxtap.verification.proof.proof_level import ProofLevel
    from auxtap.verification.proof.proved import ProvedPatch
    from auxtap.verification.static.verdicts import Proof

DEFAULT_LAYERS = "3,31,59"
DEFAULT_MODELS = "deepseek,llama"
LAYERS_HELP = "Capture indices that a server taps by default; the patch itself names none."
MODELS_HELP = "Models whose pipeline stages are tapped: names of files below models/, or all."


@dataclass(frozen=True)
class Wanted:
    """The models and layers that a command was asked for.

    `named` tells whether a person said which models, on the command line, in the environment or in `auxtap.toml`; what
    is not done when nothing of one of those can be captured is the `consequence`.
    """

    models: tuple[str, ...]
    layers: tuple[int, ...]
    named: bool
    consequence: str


def wanted(context: typer.Context, model: str, layers: str, consequence: str) -> Wanted:
    """Read --model and --layers.

    Raises:
        UsageError: one of them is no list of models or of capture indices.
    """
    from auxtap.rewriters.patch.registry import parse_models

    source = context.get_parameter_source("model")
    named = source is not None and source.name != "DEFAULT"
    return Wanted(parse_models(model), parse_layers(layers), named, consequence)


def prove_source(source: str, wanted: Wanted, ready: "Callable[[Source], None]" = lambda source: None) -> "ProvedPatch":
    """Open a source, have `ready` look at it, write its patch and judge it.

    Raises:
        PatchError: nothing of a model that was named can be captured.
    """
    from auxtap.checkout.source import open_source
    from auxtap.commands.views.console import say
    from auxtap.rewriters.patch.registry import model_files
    from auxtap.rewriters.places.syntax import ParsedTree
    from auxtap.tracer.reading.trees import Readings
    from auxtap.verification.proof.proved import prove_patch

    layout = cache_layout()
    opened = open_source(source, layout, say)
    ready(opened)
    model_files(wanted.models, ParsedTree(opened.tree))
    say(f"writing and proving the patch for SGLang {opened.tree.release} ({len(opened.tree.files)} files)")
    proved = prove_patch(opened, wanted.models, wanted.layers, Readings(layout.readings))
    check_models(proved, wanted)
    if proved.level.level != "engine-proved":
        say(f"this patch has a static proof only: {proved.level.why}")
    return proved


def check_models(proved: "ProvedPatch", wanted: Wanted) -> None:
    """Say which classes of the models the patch refuses.

    Raises:
        PatchError: nothing of a model that was named can be captured.
    """
    from auxtap.commands.views.console import say
    from auxtap.rewriters.patch.named_models import require_captured

    if wanted.named:
        require_captured(proved.refused, proved.source.tree.release, wanted.consequence)
    for refused in proved.refused.classes:
        say(f"a server with this patch refuses {refused}")


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


def ids_rows(plan: "CapturePlan") -> "list[IdsRow]":
    """Return the draft-config ids of the default layers, for the classes in the files of the patch's models."""
    from auxtap.commands.views.patch_view import IdsRow
    from auxtap.core.draft_ids import find_draft_ids
    from auxtap.rewriters.patch.registry import ALIASES, ALL_MODELS

    stems = {*plan.models, *(ALIASES.get(name, name) for name in plan.models)}
    classes: dict[tuple[str, tuple[int, ...] | None], list[str]] = {}
    for setter in plan.setters:
        if setter.file.stem in stems or ALL_MODELS in stems:
            ids = find_draft_ids(plan.layers, setter.rules, None)
            classes.setdefault((setter.name, ids), []).append(setter.model)
    return [IdsRow(name, ids, tuple(names)) for (name, ids), names in classes.items()]


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
    from auxtap.rewriters.patch.manifest import draft_ids_by_class

    row = patch_row(proved)
    return {
        "release": row.release,
        "origin": row.origin,
        "patch_sha256": row.digest,
        "source_digest": proved.source.digest,
        "models": list(row.models),
        "layers": list(row.layers),
        "refused": [{**asdict(each), "file": str(each.file)} for each in proved.refused.classes],
        "draft_config_ids": draft_ids_by_class(proved.patch_set.plan),
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
