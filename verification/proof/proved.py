"""Write a capture patch and prove it in one step: what `patch`, `verify` and `apply` share."""

from collections.abc import Sequence
from dataclasses import dataclass

from auxtap.checkout.source import Source
from auxtap.core.collector import collector_paused
from auxtap.core.source_tree import SourceTree
from auxtap.core.version import __version__
from auxtap.rewriters.patch.diff import PatchSet, write_patch
from auxtap.rewriters.patch.manifest import Manifest, Origin, manifest_bytes, read_manifest
from auxtap.rewriters.patch.named_models import RefusedModels, find_refused
from auxtap.rewriters.patch.plan import CapturePlan, plan_capture
from auxtap.rewriters.patch.registry import ALIASES, ALL_MODELS, DEFAULT_MODELS
from auxtap.tracer.reading.trees import Readings
from auxtap.tracer.report.readings import ClassFate
from auxtap.verification.proof.proof_level import ProofLevel, proof_level
from auxtap.verification.static.static import verify_static
from auxtap.verification.static.verdicts import Proof


@dataclass(frozen=True)
class ProvedPatch:
    """A patch for a source, its manifest's bytes and its static proof, which may not hold.

    `classes` says what becomes of each model class, `refused` which of the patch's models' own classes it refuses.
    """

    source: Source
    patch_set: PatchSet
    manifest: bytes
    proof: Proof
    level: ProofLevel
    refused: RefusedModels
    classes: tuple[ClassFate, ...]


def prove_patch(
    source: Source, models: Sequence[str], layers: Sequence[int], readings: Readings | None = None
) -> ProvedPatch:
    """Write the patch for `source` and judge it statically; only what `readings` keeps is written to disk.

    Raises:
        PatchError: an anchor is missing or stands twice, or the tree is patched already.
    """
    readings = readings or Readings()
    with collector_paused():
        patch_set = write_patch(source.tree, plan_capture(source.tree, models, layers, readings))
        proof = verify_static(source, patch_set.patch, _manifest(source, patch_set), readings)
        level = proof_level(source.tree.release, patch_set.patch, source.digest)
        classes = patch_set.plan.models_read.fates
        manifest = manifest_bytes(patch_set, _origin(source), __version__, proof.passed, level.to_json(), classes)
        refused = refused_models(source.tree, patch_set.plan)
        return ProvedPatch(source, patch_set, manifest, proof, level, refused, classes)


def refused_models(tree: SourceTree, plan: CapturePlan) -> RefusedModels:
    """Return which classes of the plan's models the patch refuses; of no model where it is for all of them."""
    if plan.models == (ALL_MODELS,):
        return RefusedModels()
    tapped = frozenset(each.path.stem for each in plan.insertions if each.kind == "loop")
    # Kimi-K2.5 is patched in DeepSeek's file; the class that is served stands in its own.
    stems = {name: ALIASES[name] if name in DEFAULT_MODELS and name in ALIASES else name for name in plan.models}
    return find_refused(tree, stems, plan.models_read.fates, tapped)


def _origin(source: Source) -> Origin:
    return Origin(source.kind, source.digest)


def _manifest(source: Source, patch_set: PatchSet) -> Manifest:
    return read_manifest(manifest_bytes(patch_set, _origin(source), __version__, ()), "the manifest")
