"""`auxtap apply` and `auxtap revert`: a patched worktree, and its end."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auxtap.commands.patching import DEFAULT_LAYERS, DEFAULT_MODELS, LAYERS_HELP, MODELS_HELP
from auxtap.core.errors import CheckFailedError

if TYPE_CHECKING:
    from auxtap.checkout.record import AppliedWorktree


def apply(
    source: Annotated[str, typer.Argument(help="SGLang tree: PATH, PATH@REF, an installed package, or pypi:0.5.9.")],
    worktree: Annotated[Path, typer.Option(help="Folder for the worktree; it must not exist yet.")],
    layers: Annotated[str, typer.Option(help=LAYERS_HELP)] = DEFAULT_LAYERS,
    model: Annotated[str, typer.Option(help=MODELS_HELP)] = DEFAULT_MODELS,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Apply the proved capture patch to a git worktree of its own."""
    from auxtap.checkout.worktree import apply_patch, require_free
    from auxtap.commands import patching
    from auxtap.ui import console, patch_view

    require_free(worktree)
    proved = patching.prove_source(source, layers, model)
    if not proved.proof.holds:
        names = [verdict.check for verdict in proved.proof.rejected]
        raise CheckFailedError(
            patching.refusal(names, ": nothing was applied"), hint=f"auxtap verify {source} shows them all"
        )
    applied = apply_patch(proved.source, proved.patch_set, worktree)
    if json_output:
        console.emit_json(_record(applied))
    else:
        patch_view.show(patch_view.facts_table(_facts(applied)))
    console.say(f"next: auxtap serve --worktree {applied.path} --model-path MODEL")


def _record(applied: "AppliedWorktree") -> dict[str, Any]:
    return {
        "worktree": str(applied.path),
        "repository": str(applied.repository),
        "branch": applied.branch,
        "base_commit": applied.base_commit,
        "commit": applied.commit,
        "release": applied.release,
        "patch_sha256": applied.patch_digest,
        "source_digest": applied.source_digest,
        "files": {str(path): digest for path, digest in applied.files.items()},
    }


def _facts(applied: "AppliedWorktree") -> list[tuple[str, str]]:
    return [
        ("worktree", str(applied.path)),
        ("branch", applied.branch),
        ("on top of", f"{applied.base_commit[:12]} of {applied.repository}"),
        ("release", f"SGLang {applied.release}"),
        ("files", f"{len(applied.files)}, digests verified on disk and in the commit"),
        ("patch digest", applied.patch_digest),
    ]


def revert(
    worktree: Annotated[Path, typer.Argument(help="Worktree that auxtap apply made.")],
    force: Annotated[bool, typer.Option("--force", help="Remove it with other commits or local changes.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Remove a worktree that apply made, and its branch."""
    from auxtap.checkout.worktree import revert as remove
    from auxtap.ui import console, patch_view

    removed = remove(worktree, force=force)
    if json_output:
        console.emit_json({"worktree": str(removed.path), "branch": removed.branch, "removed": True})
    else:
        patch_view.show(patch_view.facts_table([("removed", str(removed.path)), ("branch", removed.branch)]))
