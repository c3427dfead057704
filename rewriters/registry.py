"""Which rewriters a capture patch is made of."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Protocol

from auxtap.core.errors import UsageError
from auxtap.core.source_tree import SRT_ROOT
from auxtap.rewriters.arm import ArmRewriter
from auxtap.rewriters.gate import GateRewriter
from auxtap.rewriters.insertion import Insertion
from auxtap.rewriters.note import NoteRewriter
from auxtap.rewriters.stage import StageRewriter
from auxtap.rewriters.syntax import ParsedTree
from auxtap.rewriters.tap import TapRewriter

_DEEPSEEK = SRT_ROOT / "models/deepseek_v2.py"
# Model name -> the file whose stage exit is tapped. Kimi-K2.5 wraps DeepSeek's backbone.
STAGE_FILES: Mapping[str, PurePosixPath] = {
    "deepseek": _DEEPSEEK,
    "kimi_k25": _DEEPSEEK,
    "llama": SRT_ROOT / "models/llama.py",
}
DEFAULT_MODELS = ("deepseek", "llama")


class Rewriter(Protocol):
    """Finds the one place of a kind in a file and proposes one line for it."""

    @property
    def kind(self) -> str:
        """Name the rewriter in manifests and errors."""

    @property
    def path(self) -> PurePosixPath:
        """Name the file that the line goes into."""

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the insertion.

        Raises:
            PatchError: the anchor does not stand exactly once.
        """


def parse_models(text: str) -> tuple[str, ...]:
    """Read a list such as `deepseek,llama`; sorted, without repeats.

    Raises:
        UsageError: a model is not known, or none is named.
    """
    names = sorted({name.strip() for name in text.split(",") if name.strip()})
    unknown = [name for name in names if name not in STAGE_FILES]
    if unknown or not names:
        what = f"unknown model {', '.join(unknown)}" if unknown else "no model named"
        raise UsageError(what, hint=f"models are {', '.join(STAGE_FILES)}; give them with commas")
    return tuple(names)


def statement_rewriters(models: Sequence[str]) -> tuple[Rewriter, ...]:
    """Return the rewriters of the statements for `models`: three for every model, one more a model file."""
    stage_files = sorted({STAGE_FILES[model] for model in models})
    return (ArmRewriter(), NoteRewriter(), TapRewriter(), *(StageRewriter(path) for path in stage_files))


def all_rewriters(models: Sequence[str]) -> tuple[Rewriter, ...]:
    """Return every rewriter for `models`: the statements, and a gate for each file that gets one."""
    statements = statement_rewriters(models)
    gated = sorted({rewriter.path for rewriter in statements})
    return (*statements, *(GateRewriter(path) for path in gated))
