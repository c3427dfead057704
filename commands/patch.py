"""`auxtap patch`: write the capture patch of a source."""

from pathlib import Path
from typing import Annotated

import typer

from auxtap.commands.patching import DEFAULT_LAYERS, DEFAULT_MODELS, LAYERS_HELP, MODELS_HELP
from auxtap.core.errors import CheckFailedError


def patch(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="SGLang tree: PATH, PATH@REF, an installed package, or pypi:0.5.9.")],
    layers: Annotated[str, typer.Option(help=LAYERS_HELP)] = DEFAULT_LAYERS,
    model: Annotated[str, typer.Option(help=MODELS_HELP)] = DEFAULT_MODELS,
    out: Annotated[Path, typer.Option(help="Folder to write sglang-<release>/ into.")] = Path("generated"),
    show: Annotated[bool, typer.Option("--show", help="Print the changes with three lines of context.")] = False,
    classes: Annotated[
        bool, typer.Option("--classes", help="List every causal LM class and how it is captured; write nothing.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write and prove the capture patch of an SGLang tree."""
    if classes:
        _list_classes(source, json_output=json_output)
        return
    from auxtap.checkout.publication import publish_patch
    from auxtap.commands import patching
    from auxtap.commands.views import console, patch_view

    proved = patching.prove_source(source, patching.wanted(context, model, layers, "; nothing was written"))
    checks = patching.check_rows(proved.proof)
    record = patching.patch_record(proved)
    if proved.proof.holds:
        files = publish_patch(out, proved.patch_set.plan.release, proved.patch_set.patch, proved.manifest)
        record |= {"patch": str(files.patch), "manifest": str(files.manifest)}
        console.say(f"wrote {files.patch} and {files.manifest}")
    if json_output:
        console.emit_json(record)
    else:
        diff = [patch_view.diff_view(proved.patch_set.for_people().decode(errors="replace"))] if show else []
        patch_view.show(
            *diff,
            patch_view.insertions_table(patching.insertion_rows(proved.patch_set.plan)),
            patch_view.decisions_table(patching.decision_rows(proved.patch_set.plan)),
            patch_view.ids_table(patching.ids_rows(proved.patch_set.plan)),
            patch_view.checks_table(checks),
            patch_view.summary_table(patching.patch_row(proved), checks),
        )
    if not proved.proof.holds:
        names = [verdict.check for verdict in proved.proof.rejected]
        raise CheckFailedError(patching.refusal(names, ": nothing was written"), hint="the table says what was found")


def _list_classes(source: str, *, json_output: bool) -> None:
    from auxtap.checkout.source import open_source
    from auxtap.commands.context import cache_layout
    from auxtap.commands.views import console, patch_view
    from auxtap.tracer.reading.trees import Readings

    layout = cache_layout()
    tree = open_source(source, layout, console.say).tree
    fates = Readings(layout.readings).of(tree).fates
    if json_output:
        console.emit_json({"release": tree.release, "classes": [fate.to_json() for fate in fates]})
    else:
        patch_view.show(patch_view.classes_table([patch_view.ClassRow(**fate.to_json()) for fate in fates]))
