"""`auxtap apply` and `auxtap revert`: a patched worktree, and its end."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auxtap.commands.context import cache_layout
from auxtap.commands.patching import DEFAULT_LAYERS, DEFAULT_MODELS, LAYERS_HELP, MODELS_HELP
from auxtap.core.errors import CheckFailedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from auxtap.checkout.inplace import PatchedPackage
    from auxtap.checkout.source import Source
    from auxtap.checkout.worktree_record import AppliedWorktree
    from auxtap.commands.patching import Wanted
    from auxtap.verification.proof.proved import ProvedPatch


def apply(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="SGLang tree: PATH, PATH@REF, an installed package, or pypi:0.5.9.")],
    worktree: Annotated[Path | None, typer.Option(help="Folder for the worktree; it must not exist yet.")] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Patch the installed package that SOURCE names, with a record.")
    ] = False,
    layers: Annotated[str, typer.Option(help=LAYERS_HELP)] = DEFAULT_LAYERS,
    model: Annotated[str, typer.Option(help=MODELS_HELP)] = DEFAULT_MODELS,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Apply the proved capture patch to a git worktree of its own, or to an installed package."""
    from auxtap.checkout.worktree import apply_patch, require_committed, require_free
    from auxtap.commands import patching
    from auxtap.commands.views import console, patch_view

    wanted = patching.wanted(context, model, layers, "; nothing was applied")
    if in_place:
        if worktree is not None:
            raise UsageError(
                "--worktree and --in-place exclude each other",
                hint="a checkout or release gets a worktree, an installed package is patched in place",
            )
        _apply_in_place(source, wanted, json_output=json_output)
        return
    if worktree is None:
        raise UsageError("where to? --worktree is missing", hint="or --in-place, for an installed package")
    require_free(worktree)
    proved = _proved(source, wanted, require_committed)
    applied = apply_patch(proved.source, proved.patch_set, worktree)
    if json_output:
        console.emit_json(_record(applied))
    else:
        patch_view.show(patch_view.facts_table(_facts(applied)))
    console.say(f"next: auxtap serve --worktree {applied.path} --model-path MODEL")


def _proved(source: str, wanted: "Wanted", ready: "Callable[[Source], None]" = lambda source: None) -> "ProvedPatch":
    from auxtap.commands import patching

    proved = patching.prove_source(source, wanted, ready)
    if not proved.proof.holds:
        names = [verdict.check for verdict in proved.proof.rejected]
        raise CheckFailedError(
            patching.refusal(names, ": nothing was applied"), hint=f"auxtap verify {source} shows them all"
        )
    return proved


def _apply_in_place(source: str, wanted: "Wanted", *, json_output: bool) -> None:
    from auxtap.checkout.inplace import package_folder, patch_package
    from auxtap.checkout.releases import PYPI_PREFIX
    from auxtap.checkout.source import open_source
    from auxtap.commands.views import console, patch_view

    package = package_folder(Path(source))
    proved = _proved(str(package), wanted)
    released = open_source(f"{PYPI_PREFIX}{proved.source.tree.release}", cache_layout(), console.say).tree
    patched = patch_package(proved.source, proved.patch_set, package, released)
    if json_output:
        console.emit_json(_package_record(patched))
    else:
        patch_view.show(patch_view.facts_table(_package_facts(patched)))
    console.say(f"next: auxtap serve --worktree {patched.path} --python PYTHON --model-path MODEL")


def _package_record(patched: "PatchedPackage") -> dict[str, Any]:
    return {
        "package": str(patched.path),
        "release": patched.release,
        "patch_sha256": patched.patch_digest,
        "source_digest": patched.source_digest,
        "files": {str(path): digest for path, digest in patched.after.items()},
    }


def _package_facts(patched: "PatchedPackage") -> list[tuple[str, str]]:
    return [
        ("package", str(patched.path)),
        ("release", f"SGLang {patched.release}, each file as it was released"),
        ("files", f"{len(patched.after)}, digests verified; the originals are kept"),
        ("patch digest", patched.patch_digest),
        ("undo", f"auxtap revert {patched.path}"),
    ]


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
    worktree: Annotated[Path, typer.Argument(help="Worktree that auxtap apply made, or package that it patched.")],
    force: Annotated[bool, typer.Option("--force", help="Undo it with other commits or local changes.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Remove a worktree that apply made, and its branch; or put a patched package back as it was."""
    from auxtap.checkout.inplace import find_patched_package, restore_package
    from auxtap.checkout.worktree import revert as remove
    from auxtap.commands.views import console, patch_view

    package = find_patched_package(worktree)
    if package is not None:
        patched = restore_package(package, force=force)
        n_files = f"{len(patched.before)} files, as they were"
        if json_output:
            console.emit_json({"package": str(package), "release": patched.release, "restored": True})
        else:
            patch_view.show(patch_view.facts_table([("package", str(package)), ("restored", n_files)]))
        return
    removed = remove(worktree, force=force)
    if json_output:
        console.emit_json({"worktree": str(removed.path), "branch": removed.branch, "removed": True})
    else:
        patch_view.show(patch_view.facts_table([("removed", str(removed.path)), ("branch", removed.branch)]))
