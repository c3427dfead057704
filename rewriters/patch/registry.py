"""Which rewriters a capture patch is made of.

A module of `places/` with a `STATEMENT` has a statement that is not a model file's; it is found by being there.
"""

import difflib
import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Protocol

from auxtap.core.errors import UsageError
from auxtap.core.source_tree import MODELS_ROOT
from auxtap.rewriters import places
from auxtap.rewriters.places.gate import GateRewriter
from auxtap.rewriters.places.insertion import Insertion
from auxtap.rewriters.places.loop import LoopRewriter, LoopStageRewriter
from auxtap.rewriters.places.stage import StageRewriter
from auxtap.rewriters.places.syntax import ParsedTree

ALL_MODELS = "all"
# Names that are not those of a file below models/. Kimi-K2.5 wraps DeepSeek's backbone.
ALIASES: Mapping[str, str] = {"deepseek": "deepseek_v2", "kimi_k25": "deepseek_v2"}
DEFAULT_MODELS = ("deepseek", "llama")
# Files of draft models, which are never the served one.
_DRAFTS = ("_eagle", "_eagle3", "_nextn", "_mtp")
_DEFAULT_FILES = tuple(ALIASES.get(name, name) for name in DEFAULT_MODELS)
_STAGES = b"pp_group"
_NAME = re.compile(r"[a-z0-9_]+")


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


class StatementRewriter(Rewriter, Protocol):
    """One whose file is not a model's."""

    def is_needed(self, files: ParsedTree) -> bool:
        """Tell whether the tree has the place, and the patch has to have its statement."""


def parse_models(text: str) -> tuple[str, ...]:
    """Read a list such as `deepseek,llama`, or `all`; sorted, without repeats.

    Raises:
        UsageError: a name cannot be a model's, none is named, or `all` stands beside others.
    """
    names = sorted({name.strip() for name in text.split(",") if name.strip()})
    odd = [name for name in names if _NAME.fullmatch(name) is None]
    hint = "give names of files below models/ with commas (deepseek,llama,qwen3_moe), or all"
    if odd or not names:
        raise UsageError(f"unknown model {', '.join(odd)}" if odd else "no model named", hint=hint)
    if ALL_MODELS in names and len(names) > 1:
        raise UsageError("all stands for every model: name nothing beside it", hint=hint)
    return tuple(names)


def model_files(models: Sequence[str], files: ParsedTree) -> tuple[PurePosixPath, ...]:
    """Return the files of the models, each once, in order.

    Raises:
        UsageError: the tree has no such file.
    """
    if tuple(models) == (ALL_MODELS,):
        return tuple(sorted(path for path in files.files if path.parent == MODELS_ROOT))
    named = {name: MODELS_ROOT / f"{ALIASES.get(name, name)}.py" for name in models}
    missing = [name for name, path in named.items() if path not in files.files]
    if missing:
        raise UsageError(
            f"unknown model {', '.join(missing)}: {files.tree.origin} has no {named[missing[0]]}",
            hint=_nearest(missing[0], files),
        )
    return tuple(sorted(set(named.values())))


def _nearest(name: str, files: ParsedTree) -> str:
    """Say which models of the tree may be meant: names like this one, or the file of a class of that name."""
    stems = {path.stem: path for path in files.files if path.parent == MODELS_ROOT}
    wanted = name.lower().replace("_", "")
    known = {stem.replace("_", ""): stem for stem in [*ALIASES, *stems]}
    near = [known[each] for each in difflib.get_close_matches(wanted, known, n=5, cutoff=0.6)]
    near += [stem for stem in stems if name in stem and stem not in near]
    head = f"class {name}".encode()
    near += [stem for stem, path in stems.items() if head in files.files[path].lower() and stem not in near]
    meant = f"did you mean {', '.join(near[:5])}? " if near else ""
    return f"{meant}auxtap patch --classes SOURCE lists what a release has"


def model_rewriters(models: Sequence[str], files: ParsedTree) -> tuple[Rewriter, ...]:
    """Return the rewriters of the model files: a stage tap behind a capture loop, or a tap in a loop without one.

    With `all`, files in which neither is recognised are left out: the tap refuses their classes. A file that was named
    must have one of them, or its classes a backbone of another file that has, but for the default models, which older
    releases cannot capture yet.
    """
    everything = tuple(models) == (ALL_MODELS,)
    found: list[Rewriter] = []
    paths = model_files(models, files)
    if not everything:
        paths = tuple(dict.fromkeys(place for path in paths for place in _backbone_files(path, files)))
    for path in paths:
        if everything and path.stem.endswith(_DRAFTS):
            continue
        captures = any(reading.kind == "native" for reading in files.readings.readings if reading.file == path)
        if captures:
            staged = [reading for reading in files.readings.usable("native") if reading.file == path and reading.exits]
            if len(staged) == 1 if everything else _STAGES in files.files[path]:
                found.append(StageRewriter(path))
        elif everything or path.stem not in _DEFAULT_FILES:
            found += _loop_rewriters(path, files) or ([] if everything else [LoopRewriter(path)])
    return tuple(found)


def _backbone_files(path: PurePosixPath, files: ParsedTree) -> tuple[PurePosixPath, ...]:
    """Return the file itself where it runs decoder blocks, else those of the backbones that its classes wrap."""
    if any(reading.file == path and reading.kind != "head" for reading in files.readings.readings):
        return (path,)
    wrapped = (fate.backbone_file for fate in files.readings.fates if fate.file == path.stem)
    return tuple(dict.fromkeys(place for place in wrapped if place is not None)) or (path,)


def _loop_rewriters(path: PurePosixPath, files: ParsedTree) -> list[Rewriter]:
    loops = [reading for reading in files.readings.usable("loop") if reading.file == path]
    if len(loops) != 1:
        return []
    return [LoopRewriter(path), *([LoopStageRewriter(path)] if loops[0].exits else [])]


def statement_rewriters(models: Sequence[str], files: ParsedTree) -> tuple[Rewriter, ...]:
    """Return the rewriters of the statements for `models`: those of every model that the tree needs, then the model
    files'."""
    needed = (rewriter for rewriter in _of_every_model() if rewriter.is_needed(files))
    return (*needed, *model_rewriters(models, files))


def _of_every_model() -> tuple[StatementRewriter, ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(places.__path__))
    modules = (importlib.import_module(f"{places.__name__}.{name}") for name in names)
    return tuple(module.STATEMENT() for module in modules if hasattr(module, "STATEMENT"))


def all_rewriters(models: Sequence[str], files: ParsedTree) -> tuple[Rewriter, ...]:
    """Return every rewriter for `models`: the statements, and a gate for each file that gets one."""
    statements = statement_rewriters(models, files)
    gated = sorted({rewriter.path for rewriter in statements})
    return (*statements, *(GateRewriter(path) for path in gated))
