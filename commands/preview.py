"""`auxtap preview`: one sample of a dataset as a trainer will see it."""

from pathlib import Path
from typing import Annotated

import typer

from auxtap.commands.dataset import (
    MaxTokens,
    Rewritten,
    TemplateArgs,
    TokenizerChoice,
    TokenizerFolder,
    TooLong,
    TrustRemoteCode,
)


def preview(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Dataset as extract takes it, or a store.")],
    tokenizer: TokenizerFolder = None,
    index: Annotated[int, typer.Option(min=0, help="Which sample, counted from 0.")] = 0,
    sample_id: Annotated[str | None, typer.Option("--id", help="Which sample, by id. [default: by --index]")] = None,
    all_rows: Annotated[bool, typer.Option("--all", help="Show every token, not those around changes only.")] = False,
    trust_remote_code: TrustRemoteCode = False,
    template_args: TemplateArgs = None,
    rewritten: Rewritten = "refuse",
    max_tokens: MaxTokens = None,
    too_long: TooLong = "cut",
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Show a sample: trained tokens, and each state's token beside the token that it is to predict."""
    from auxtap.commands.views import console, preview_view
    from auxtap.extraction.audit.preview import preview_sample
    from auxtap.extraction.datasets.reading import DatasetRules

    loaded = TokenizerChoice(tokenizer, trust_remote_code, template_args, rewritten).load(need_template=False)
    rules = DatasetRules(max_tokens=max_tokens, too_long=too_long)
    found = preview_sample(dataset, loaded, rules, index=index, sample_id=sample_id)
    if found.warning:
        console.say(f"warning: {found.warning}")
    preview_view.show_preview(found, all_rows=all_rows, as_json=as_json)
