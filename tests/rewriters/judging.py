"""Judge mutations: patch the changed tree, run what was patched, and compare what arrives with what is meant."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from auxtap.core.errors import PatchError
from auxtap.core.source_tree import MODELS_ROOT, SRT_ROOT, SourceTree
from auxtap.rewriters.patch.registry import model_rewriters
from auxtap.rewriters.patch.table import backbone_key, backbone_table
from auxtap.rewriters.places.insertion import Insertion
from auxtap.rewriters.places.syntax import ParsedTree
from auxtap.tests.rewriters.mutations import BOUNDARY, COLLECTORS, COMMUNICATOR, MODELS, Mutation

BROKEN = "does not run at all"
AT_START = "refused at start"
# What the run needs of a tree beside the model's own file.
_NEEDED = (COLLECTORS, COMMUNICATOR, BOUNDARY)
Trees = Callable[[str], SourceTree]


@dataclass(frozen=True)
class Outcome:
    """What became of a model: whether the patch captures it, and what was wrong when it ran, "" for nothing."""

    captured: bool
    fault: str

    @property
    def is_wrong(self) -> bool:
        """Tell whether values that are not the right ones would be taken for captured."""
        return self.captured and self.fault != "" and not self.fault.startswith((AT_START, BROKEN))

    @property
    def is_false_alarm(self) -> bool:
        """Tell whether what would have been right is refused."""
        return not self.captured and not self.fault

    @property
    def patch(self) -> str:
        """Say what the patch does."""
        return "captures" if self.captured else "refuses"

    @property
    def run(self) -> str:
        """Say what the run shows, without the scenario and the layer."""
        return "right" if not self.fault else self.fault.partition(":")[0].partition(" (")[0]


def without_other_models(tree: SourceTree, model: str) -> SourceTree:
    """Return the tree with one model's file only: the others are not what is judged."""
    kept = MODELS_ROOT / f"{model}.py"
    return replace(
        tree, files={path: data for path, data in tree.files.items() if path.parent != MODELS_ROOT or path == kept}
    )


def mutated(mutation: Mutation, trees: Trees) -> SourceTree:
    tree = without_other_models(trees(mutation.release), mutation.model)
    old = tree.files[mutation.path].decode()
    new = mutation.change(old)
    assert new != old, f"{mutation.id} changes nothing"
    compile(new, mutation.id, "exec", dont_inherit=True)
    return replace(tree, files={**tree.files, mutation.path: new.encode()})


def judge(mutations: Iterable[Mutation], trees: Trees) -> list[Outcome]:
    """Return the outcome of each mutation, in order."""
    return judge_trees([(mutated(each, trees), each.model) for each in mutations])


def judge_trees(cases: list[tuple[SourceTree, str]]) -> list[Outcome]:
    """Return the outcome of each model in its tree."""
    jobs = [_job(tree, model) for tree, model in cases]
    script = Path(__file__).with_name("run_backbone_script.py")
    run = subprocess.run([sys.executable, "-I", str(script)], input=json.dumps(jobs), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return [Outcome(bool(job["staged"]), fault) for job, fault in zip(jobs, json.loads(run.stdout), strict=True)]


def _job(tree: SourceTree, model: str) -> Mapping[str, object]:
    """Return what it takes to run a model; one that is refused runs as if the tap captured it on a single stage."""
    path = MODELS_ROOT / f"{model}.py"
    backbone, head = MODELS[model]
    key = backbone_key(path, backbone)
    files = ParsedTree(tree)
    table, insertions = "", list[Insertion]()
    try:
        insertions = [rewriter.propose(files) for rewriter in model_rewriters((model,), files)]
        table = backbone_table(files.readings, insertions).decode()
    except PatchError:
        pass
    names: dict[str, dict[str, bool]] = {"CAPTURES": {}}
    exec(table, names)
    captured = key in names["CAPTURES"]
    if not captured:
        table, insertions = f"CAPTURES = {{{key!r}: True}}", []
    sources = {_module(each): tree.files[each].decode() for each in _NEEDED if each in tree.files}
    sources[_module(path)] = _with(tree.files[path].decode(), insertions)
    return {
        "module": _module(path),
        "sources": sources,
        "table": table,
        "backbone": backbone,
        "head": head,
        "gathers": "tensor_model_parallel_all_gather" in sources[_module(path)],
        "staged": captured,
    }


def _module(path: Path | object) -> str:
    return ".".join(("sglang", "srt", *str(path).removesuffix(".py").removeprefix(f"{SRT_ROOT}/").split("/")))


def _with(text: str, insertions: list[Insertion]) -> str:
    """Return a model's file with the lines of the patch in it; the gate is the run's own."""
    found = text.split("\n")
    for insertion in sorted(insertions, key=lambda each: -each.line):
        found.insert(insertion.line - 1, insertion.text)
    return "\n".join(found)
