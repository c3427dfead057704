"""Write a capture patch and prove it in one step: what `patch`, `verify` and `apply` share."""

from collections.abc import Sequence
from dataclasses import dataclass

from auxtap.checkout.source import Source
from auxtap.core.collector import collector_paused
from auxtap.core.version import __version__
from auxtap.rewriters.patch.diff import PatchSet, write_patch
from auxtap.rewriters.patch.manifest import Manifest, Origin, manifest_bytes, read_manifest
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.tracer.reading.trees import Readings
from auxtap.verification.proof.proof_level import ProofLevel, proof_level
from auxtap.verification.static.static import verify_static
from auxtap.verification.static.verdicts import Proof


@dataclass(frozen=True)
class ProvedPatch:
    """A patch for a source, its manifest's bytes and its static proof, which may not hold."""

    source: Source
    patch_set: PatchSet
    manifest: bytes
    proof: Proof
    level: ProofLevel


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
        classes = readings.of(source.tree).fates
        manifest = manifest_bytes(patch_set, _origin(source), __version__, proof.passed, level.to_json(), classes)
        return ProvedPatch(source, patch_set, manifest, proof, level)


def _origin(source: Source) -> Origin:
    return Origin(source.kind, source.digest)


def _manifest(source: Source, patch_set: PatchSet) -> Manifest:
    return read_manifest(manifest_bytes(patch_set, _origin(source), __version__, ()), "the manifest")
