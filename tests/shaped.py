"""A small tree in SGLang's shape, made of the rewriters' fixtures: what tests of several folders patch."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from auxtap.core.source_tree import PACKAGE_ROOT, SRT_ROOT, SourceTree

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures/rewriters"
RUNNER = SRT_ROOT / "model_executor/model_runner.py"
BATCH = SRT_ROOT / "model_executor/forward_batch_info.py"
LOGITS = SRT_ROOT / "layers/logits_processor.py"
LLAMA = SRT_ROOT / "models/llama.py"
DEEPSEEK = SRT_ROOT / "models/deepseek_v2.py"
MIXTRAL = SRT_ROOT / "models/mixtral.py"
SCHEDULER = SRT_ROOT / "managers/scheduler.py"
BATCHES = SRT_ROOT / "managers/schedule_batch.py"
# A worker's batch that does not list its requests, as before SGLang 0.5.6.
OLD_BATCHES = b"class ModelWorkerBatch:\n    n_rows: int\n\n\nclass ScheduleBatch:\n    reqs: list\n"
# A collector as SGLang has it from 0.5.21 on: it keeps a copy of what it is lent.
COLLECTORS = SRT_ROOT / "layers/aux_hidden_states.py"
COLLECTOR = b"""class AuxHiddenStateList(list):
    def capture(self, hidden, *, owned=False):
        self.append(hidden if owned else hidden.clone())
"""
TARGETS = {
    "arm": RUNNER,
    "rank": RUNNER,
    "attach": SCHEDULER,
    "note": BATCH,
    "tap": LOGITS,
    "stage": LLAMA,
    "loop": MIXTRAL,
    "gate": RUNNER,
}
RELEASE = "0.5.9"

_REQ = b"class Req:\n    def __init__(self, rid, ids):\n        self.rid, self.origin_input_ids = rid, ids\n\n\n"
_CONFIG = b"class ModelConfig:\n    def __init__(self, c):\n" + b"".join(
    f"        self.{name} = c.{name}\n".encode()
    for name in ("num_hidden_layers", "hidden_size", "vocab_size", "context_len", "model_path")
)
_GROUPS = b"def get_pp_group(): ...\n\n\ndef get_tensor_model_parallel_world_size(): ...\n"

_FIXED = {
    SRT_ROOT / "configs/model_config.py": _CONFIG,
    SRT_ROOT / "distributed/parallel_state.py": _GROUPS,
    SRT_ROOT / "layers/dp_attention.py": b"def get_attention_tp_rank(): ...\n",
    PACKAGE_ROOT / "__init__.py": b"",
    PACKAGE_ROOT / "_version.py": b"__version__ = version = '0.5.9'\n",
    SRT_ROOT / "server_args.py": (
        b"class ServerArgs:\n"
        b"    disable_radix_cache: bool = False\n"
        b"    enable_flashinfer_allreduce_fusion: bool = False\n"
        b"    enable_two_batch_overlap: bool = False\n"
    ),
    BATCHES: (
        _REQ
        + b"class ModelWorkerBatch:\n    n_rows: int\n    reqs: list = None\n\n\nclass ScheduleBatch:\n    reqs: list\n"
    ),
    SRT_ROOT / "layers/config.json": b"{}\n",
}


def fixture(kind: str, case: str) -> bytes:
    return (FIXTURES / kind / f"{case}.py").read_bytes()


def shaped_files(changed: Mapping[PurePosixPath, bytes] | None = None) -> dict[PurePosixPath, bytes]:
    """Return a tree that every rewriter recognises, with some files replaced."""
    files = {
        **_FIXED,
        RUNNER: fixture("arm", "plain.before"),
        BATCH: fixture("note", "plain.before"),
        LOGITS: fixture("tap", "plain.before"),
        LLAMA: fixture("stage", "if_else.before"),
        DEEPSEEK: fixture("stage", "other_names.before"),
    }
    return {**files, **(changed or {})}


def shaped_tree(changed: Mapping[PurePosixPath, bytes] | None = None) -> SourceTree:
    files = {path: data for path, data in shaped_files(changed).items() if path.suffix == ".py"}
    return SourceTree(release=RELEASE, origin="shaped", commit="0" * 40, files=dict(sorted(files.items())))


def write_files(root: Path, files: Mapping[PurePosixPath, bytes]) -> None:
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def git(directory: Path, *arguments: str) -> str:
    """Run git with a pinned identity and nothing inherited."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_OPTIONAL_LOCKS": "0"}
    for who in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{who}_NAME": "Ada", f"GIT_{who}_EMAIL": "ada@example.org"}
    run = subprocess.run(["git", *arguments], cwd=directory, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def make_checkout(root: Path, files: Mapping[PurePosixPath, bytes] | None = None) -> Path:
    """Make a git checkout of the shaped tree, tagged as the release."""
    root.mkdir(parents=True)
    git(root, "init", "--quiet", "--initial-branch=main")
    write_files(root, shaped_files() if files is None else files)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=Begin")
    git(root, "tag", f"v{RELEASE}")
    return root
