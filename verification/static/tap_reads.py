"""Check that what the tap reads of SGLang stands in the tree where the tap reads it, and comes from where it should."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tracer.source.outline import parse_quietly

_BATCH_INFO = SRT_ROOT / "model_executor/forward_batch_info.py"
_SCHEDULE = SRT_ROOT / "managers/schedule_batch.py"
_RUNNER = SRT_ROOT / "model_executor/model_runner.py"
_CONFIG = SRT_ROOT / "configs/model_config.py"
_GROUPS = SRT_ROOT / "distributed/parallel_state.py"
_DP_ATTENTION = SRT_ROOT / "layers/dp_attention.py"
_CONTEXT = SRT_ROOT / "runtime_context.py"
_EAGER = SRT_ROOT / "model_executor/runner/eager_runner.py"

# (file, class, attributes that its methods set on self)
_SET_ON_SELF = (
    (_SCHEDULE, "Req", ("rid", "origin_input_ids")),
    (_RUNNER, "ModelRunner", ("model", "server_args", "model_config", "dtype", "is_draft_worker")),
    (_CONFIG, "ModelConfig", ("num_hidden_layers", "hidden_size", "vocab_size", "context_len", "model_path")),
)
_BATCH_FIELDS = ("forward_mode", "input_ids", "extend_seq_lens_cpu", "extend_prefix_lens_cpu")
_MODES = ("EXTEND", "MIXED")
# What `init_new` gives the lengths of: the names of the batch's own lengths in some release.
_ORIGINS: Mapping[str, tuple[str, ...]] = {
    "extend_seq_lens_cpu": ("extend_seq_lens", "extend_lens"),
    "extend_prefix_lens_cpu": ("extend_prefix_lens", "prefix_lens"),
}


def value_faults(tree: SourceTree) -> Iterator[str]:
    """Yield what the tap reads and the tree does not have, or has of another origin."""
    for path, name, attributes in _SET_ON_SELF:
        owner = _class(tree, path, name)
        missing = set(attributes) - (set() if owner is None else _set_on_self(owner))
        if missing:
            yield f"{path.name}: {name} does not set {', '.join(sorted(missing))}"
    yield from _batch_faults(tree)
    yield from _rank_faults(tree)


def _batch_faults(tree: SourceTree) -> Iterator[str]:
    owner = _class(tree, _BATCH_INFO, "ForwardBatch")
    fields = set() if owner is None else _fields(owner)
    # From 0.5.14 on the eager runner copies the batch; only a field says then whose rows it holds.
    wanted = (*_BATCH_FIELDS, *(("rids",) if _EAGER in tree.files else ()))
    if missing := [name for name in wanted if name not in fields]:
        yield f"{_BATCH_INFO.name}: ForwardBatch has no field {', '.join(missing)}"
    modes = _class(tree, _BATCH_INFO, "ForwardMode")
    names = set() if modes is None else {target for node in modes.body for target in _targets(node)}
    if missing := [name for name in _MODES if name not in names]:
        yield f"{_BATCH_INFO.name}: ForwardMode has no {', '.join(missing)}"
    init_new = next((node for node in _functions(owner) if node.name == "init_new"), None)
    for name, origins in _ORIGINS.items():
        given = [] if init_new is None else list(_given(init_new, name))
        if not given or not all(any(origin in text for origin in origins) for text in given):
            yield f"{_BATCH_INFO.name}: init_new gives {name} {' and '.join(given) or 'nothing'}"


def _rank_faults(tree: SourceTree) -> Iterator[str]:
    groups = tree.files.get(_GROUPS, b"")
    for name in ("get_pp_group", "get_tensor_model_parallel_world_size"):
        if name.encode() not in groups:
            yield f"{_GROUPS.name} has no {name}"
    old = b"get_attention_tp_rank" in tree.files.get(_DP_ATTENTION, b"")
    context = tree.files.get(_CONTEXT, b"")
    if not old and not (b"def get_parallel" in context and b"attn_tp_rank" in context):
        yield "nothing says which attention-TP rank a process has"


def _class(tree: SourceTree, path: PurePosixPath, name: str) -> ast.ClassDef | None:
    try:
        module = parse_quietly(tree.files.get(path, b""))
    except SyntaxError:
        return None
    return next((node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _functions(owner: ast.ClassDef | None) -> list[ast.FunctionDef]:
    return [node for node in owner.body if isinstance(node, ast.FunctionDef)] if owner is not None else []


def _fields(owner: ast.ClassDef) -> set[str]:
    return {
        node.target.id for node in owner.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _targets(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _set_on_self(owner: ast.ClassDef) -> set[str]:
    stored = (node for node in ast.walk(owner) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return {node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"}


def _given(function: ast.FunctionDef, name: str) -> Iterator[str]:
    """Yield the source of what a function gives an attribute, by assignment or as a keyword; None is left out."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Attribute) and t.attr == name for t in node.targets):
            yield ast.unparse(node.value)
        if isinstance(node, ast.keyword) and node.arg == name and ast.unparse(node.value) != "None":
            yield ast.unparse(node.value)
