"""What of a source and its patch a node is given."""

from typing import TYPE_CHECKING

from auxtap.commands.context import cache_layout
from auxtap.core.errors import CheckFailedError

if TYPE_CHECKING:
    from auxtap.checkout.source import Source
    from auxtap.node.node_profile import NodeProfile
    from auxtap.node.patch import NodePatch, NodeSource


def read_source(profile: "NodeProfile") -> "NodeSource":
    """Open the SGLang that the profile's patch is made from; the patch itself is not made.

    Raises:
        SourceError: it cannot be had.
    """
    from auxtap.checkout.source import open_source
    from auxtap.commands.views.console import say

    return node_source(open_source(profile.patch_source, cache_layout(), say))


def node_source(source: "Source") -> "NodeSource":
    """Return what the node is told of an opened source."""
    from auxtap.core.files import sha256_bytes
    from auxtap.node.flags import HazardFlag
    from auxtap.node.patch import NodeSource
    from auxtap.rewriters.patch.hazards import decide_hazards

    files = {str(path): sha256_bytes(data) for path, data in source.tree.files.items()}
    needed = [
        HazardFlag(flag, each.hazard, each.reason)
        for each in decide_hazards(source.tree)
        if each.verdict == "flag"
        for flag in each.flags
    ]
    return NodeSource(source.tree.release, files, tuple(needed))


def make_patch(profile: "NodeProfile", models: str) -> "NodePatch":
    """Make and prove the patch that is sent.

    Raises:
        CheckFailedError: a check of the patch answered no.
        PatchError: nothing of a model that was named can be captured.
    """
    from auxtap.commands import patching
    from auxtap.commands.context import parse_layers
    from auxtap.core.files import sha256_bytes
    from auxtap.node.patch import NodePatch
    from auxtap.rewriters.patch.registry import parse_models

    named = models != patching.DEFAULT_MODELS
    wanted = patching.Wanted(parse_models(models), parse_layers(patching.DEFAULT_LAYERS), named, "; nothing was sent")
    proved = patching.prove_source(profile.patch_source, wanted)
    if not proved.proof.holds:
        names = [verdict.check for verdict in proved.proof.rejected]
        raise CheckFailedError(
            patching.refusal(names, ": nothing was sent"), hint=f"auxtap verify {profile.patch_source} shows them all"
        )
    patch_set = proved.patch_set
    after = {str(change.path): change.after_sha256 for change in patch_set.changes}
    after |= {str(file.path): sha256_bytes(file.data) for file in patch_set.new_files}
    return NodePatch(
        source=node_source(proved.source),
        patch=patch_set.patch,
        patch_digest=patch_set.digest,
        source_digest=proved.source.digest,
        after=after,
        layers=patch_set.plan.layers,
    )
