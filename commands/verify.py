"""`auxtap verify`: prove a patch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auxtap.commands.context import cache_layout
from auxtap.commands.patching import DEFAULT_LAYERS, DEFAULT_MODELS
from auxtap.core.errors import CheckFailedError, UsageError

if TYPE_CHECKING:
    from auxtap.checkout.publication import PublishedPatch
    from auxtap.checkout.source import Source
    from auxtap.verification.verdicts import Proof


def verify(
    target: Annotated[str, typer.Argument(metavar="PATCH|SOURCE", help="A written patch or its folder, or a source.")],
    source: Annotated[
        str | None, typer.Option(help="The tree that PATCH is for. [default: the release that its manifest names]")
    ] = None,
    layers: Annotated[str, typer.Option(help="Capture indices, for a SOURCE.")] = DEFAULT_LAYERS,
    model: Annotated[str, typer.Option(help="Models, for a SOURCE.")] = DEFAULT_MODELS,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Prove that a patch does what it says and nothing else."""
    from auxtap.commands import patching
    from auxtap.ui import console, patch_view

    proof = _static_proof(target, source, layers, model)
    if json_output:
        console.emit_json({"target": target, **patching.proof_record(proof)})
    else:
        patch_view.show(patch_view.checks_table(patching.check_rows(proof)))
    if not proof.holds:
        names = [verdict.check for verdict in proof.rejected]
        raise CheckFailedError(
            patching.refusal(names, f" for {target}"), hint="auxtap patch SOURCE writes a patch that fits its source"
        )


def _static_proof(target: str, source: str | None, layers: str, model: str) -> "Proof":
    from auxtap.checkout.publication import find_patch, read_published
    from auxtap.commands import patching
    from auxtap.ui.console import say
    from auxtap.verification.static import verify_static

    files = find_patch(Path(target).expanduser())
    if files is None:
        if source is not None:
            raise UsageError(f"{target} is not a written patch, so --source has no place", hint="leave --source out")
        return patching.prove_source(target, layers, model).proof
    published = read_published(files)
    opened = _source_of(published, source)
    say(f"proving {files.patch} on SGLang {opened.tree.release} ({opened.tree.origin})")
    return verify_static(opened, published.patch, published.manifest)


def _source_of(published: "PublishedPatch", source: str | None) -> "Source":
    from auxtap.checkout.source import open_source
    from auxtap.ui.console import say

    manifest = published.manifest
    if source is None and manifest.origin.kind != "pypi":
        raise UsageError(
            f"{published.files.patch} was written for a {manifest.origin.kind} of SGLang {manifest.release}",
            hint="name that tree with --source",
        )
    return open_source(source or f"pypi:{manifest.release}", cache_layout(), say)
