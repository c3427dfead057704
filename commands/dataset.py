"""What the commands that read a dataset ask of it, and how it is read."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auxtap.core.errors import UsageError

if TYPE_CHECKING:
    from auxtap.extraction.datasets.reading import Dataset, DatasetRules
    from auxtap.extraction.datasets.tokenizer import ChatTokenizer

DatasetPath = Annotated[
    Path,
    typer.Argument(
        metavar="DATASET",
        help="JSONL, JSON or Parquet file, or a folder of such or of the package datasets: "
        "messages, conversations or input_ids.",
    ),
]
TokenizerFolder = Annotated[
    Path | None, typer.Option("--tokenizer", metavar="DIR", help="Tokenizer folder, needed for conversations.")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that the tokenizer folder brings along.")
]
TemplateArgs = Annotated[
    str | None,
    typer.Option(
        "--template-args", metavar="JSON", help='Arguments for the chat template, such as {"thinking": false}.'
    ),
]
Rewritten = Annotated[
    str,
    typer.Option(
        "--rewritten",
        help="Turns that the chat template rewrites later: refuse, or take as untrained.",
    ),
]
OnBad = Annotated[str, typer.Option("--on-bad", help="A bad record: stop, or skip and count it.")]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", min=1, help="Tokens of a sample at most. [default: no bound]")
]
TooLong = Annotated[str, typer.Option("--too-long", help="A sample over --max-tokens: cut or skip it.")]
Dedupe = Annotated[bool, typer.Option("--dedupe", help="Leave out what has tokens and mask of an earlier sample.")]
HoldoutShare = Annotated[
    str | None,
    typer.Option("--holdout", metavar="SHARE", help="Set a share such as 1% aside, chosen by content. [default: none]"),
]


@dataclass(frozen=True)
class TokenizerChoice:
    """A tokenizer folder, and how its chat template is used; `template_args` is JSON."""

    folder: Path | None
    trust_remote_code: bool = False
    template_args: str | None = None
    rewritten: str = "refuse"

    def load(self, *, need_template: bool = True) -> "ChatTokenizer | None":
        """Load the tokenizer, None when there is none.

        Raises:
            ExtractionError: it is not usable.
            UsageError: transformers is missing, there is no chat template, or the arguments are no JSON object.
        """
        from auxtap.extraction.datasets.tokenizer import load_tokenizer

        template_args = self._read_args()
        if self.folder is None:
            return None
        return load_tokenizer(
            self.folder,
            trust_remote_code=self.trust_remote_code,
            template_args=template_args,
            rewritten=self.rewritten,
            need_template=need_template,
        )

    def _read_args(self) -> dict[str, Any]:
        if self.template_args is None:
            return {}
        try:
            value = json.loads(self.template_args)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise UsageError(
                f"--template-args is no JSON object: {self.template_args!r}",
                hint="such as --template-args '{\"enable_thinking\": false}'",
            )
        return value


def make_rules(on_bad: str, max_tokens: int | None, too_long: str, dedupe: bool, holdout: str | None) -> "DatasetRules":
    """Return the rules that the options ask for.

    Raises:
        UsageError: an option is out of range.
    """
    from auxtap.extraction.datasets.holdout import parse_holdout
    from auxtap.extraction.datasets.reading import DatasetRules

    share = parse_holdout(holdout) if holdout is not None else None
    return DatasetRules(on_bad, max_tokens, too_long, dedupe, share)


def load_dataset(path: Path, tokenizer: TokenizerChoice, rules: "DatasetRules | None" = None) -> "Dataset":
    """Read a dataset and say what was left out of it.

    Raises:
        ExtractionError: the dataset or the tokenizer is not usable.
        UsageError: conversations and no tokenizer, or no chat template.
    """
    from auxtap.commands.views import console, dataset_view
    from auxtap.extraction.datasets.reading import DatasetRules, read_dataset

    observe = dataset_view.reading_progress(path)
    dataset = read_dataset(path, tokenizer.load(), rules or DatasetRules(), observe)
    for line in dataset_view.describe_counts(dataset.counts, dataset.first_bad, dataset.holdout):
        console.say(line)
    return dataset
