"""Turn the model names that a person gives into the files that have to be traced."""

import difflib
from collections.abc import Sequence
from pathlib import PurePosixPath

from auxtap.core.errors import SourceError, UsageError
from auxtap.core.source_tree import MODELS_ROOT, SRT_ROOT
from auxtap.tracer.flow.classes import ClassIndex

DEFAULT_MODELS = ("deepseek", "kimi_k25")
# The family that a person means by the name; its first generation has a file of that name and no capture.
_ALIASES = {"deepseek": "deepseek_v2", "kimi": "kimi_k25"}
_CONSUMERS = (SRT_ROOT / "layers/logits_processor.py",)
_SELECTORS = (
    SRT_ROOT / "model_executor/model_runner.py",
    SRT_ROOT / "model_executor/model_runner_components/attention_backend_setup.py",
    SRT_ROOT / "model_executor/model_runner_components/spec_aux_hidden_state.py",
    SRT_ROOT / "model_executor/cuda_graph_runner.py",
)
_COLLECTORS = (
    SRT_ROOT / "layers/communicator.py",
    SRT_ROOT / "layers/layer_boundary/stage.py",
    SRT_ROOT / "layers/aux_hidden_states.py",
)


def model_files(index: ClassIndex, names: Sequence[str]) -> tuple[PurePosixPath, ...]:
    """Return the model file of each name: a file of models/ without its ending, or a class in one.

    Of the default names, which nobody chose, those that the tree lacks are left out as long as it has another.

    Raises:
        UsageError: a name is neither; the hint names the nearest.
        SourceError: the tree has no models.
    """
    files = index.model_files
    if not files:
        raise SourceError(f"no model under {MODELS_ROOT} in {index.tree.origin}", hint="is it an SGLang tree?")
    stems = {path.stem: path for path in files}
    chosen: dict[PurePosixPath, None] = {}
    missing: list[str] = []
    for name in names:
        path = stems.get(_ALIASES.get(name, name)) or stems.get(name)
        if path is None:
            found = index.find(name, files[0])
            path = None if found is None else found.file
        if path is None:
            missing.append(name)
        else:
            chosen[path] = None
    if missing and not (chosen and tuple(names) == DEFAULT_MODELS):
        raise UsageError(f"no model named {missing[0]!r}", hint=_nearest(missing[0], [*_ALIASES, *stems]))
    return tuple(chosen)


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=5, cutoff=0.5)
    near += [item for item in known if name.lower() in item and item not in near][: 5 - len(near)]
    return f"did you mean {', '.join(near)}?" if near else "name a file of models/, such as --model llama"


def surrounding_files(index: ClassIndex, *, in_layer: bool) -> tuple[PurePosixPath, ...]:
    """Return the files that every model shares: where layers are selected, collected (`in_layer`) and consumed."""
    wanted = (*_SELECTORS, *(_COLLECTORS if in_layer else ()), *_CONSUMERS)
    return tuple(path for path in wanted if path in index.tree.files)


def find_file(index: ClassIndex, asked: PurePosixPath) -> PurePosixPath:
    """Return the file that `asked` names: by its path, by its path below srt, or by the end of its path.

    Raises:
        UsageError: there is no such file, or more than one.
    """
    files = index.tree.files
    for path in (asked, SRT_ROOT / asked):
        if path in files:
            return path
    ends = [path for path in files if path.parts[-len(asked.parts) :] == asked.parts]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise UsageError(f"{asked} names {len(ends)} files", hint=f"say which: {', '.join(map(str, sorted(ends)[:5]))}")
    raise UsageError(f"no file {asked} in {index.tree.origin}", hint="name it as models/llama.py")
