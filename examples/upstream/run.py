"""The capture as hooks that SGLang could have of its own, and the tap as a plugin that registers with them.

    python examples/upstream/run.py --out DIR            write DIR/hooks.patch and DIR/plugin, and check the patch
    python examples/upstream/run.py --out DIR --engine   serve a tiny model with both, and hold it against transformers

The places are those of the capture patch, found by the same rewriters. docs/upstream.md is the proposal.
"""

import argparse
import ast
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from auxtap.checkout.source import Source, open_source
from auxtap.commands.context import cache_layout
from auxtap.core.patch_text import read_patch, without_inserted
from auxtap.core.source_tree import SRT_ROOT
from auxtap.rewriters.patch.diff import PatchSet, write_patch
from auxtap.rewriters.patch.plan import CapturePlan, NewFile, plan_capture
from auxtap.rewriters.places.gate import GateRewriter
from auxtap.rewriters.places.insertion import Insertion, indented
from auxtap.rewriters.places.syntax import ParsedTree
from auxtap.serving.engine_env import set_up_engine
from auxtap.verification.engine.engine_cases import EngineCase
from auxtap.verification.engine.engine_proof import TOLERANCE, compare_runs, launch_template
from auxtap.verification.engine.engine_run import run_case
from auxtap.verification.engine.fork_server import ForkServer
from auxtap.verification.engine.run_folder import apply_in, run_folder
from auxtap.verification.engine.tiny_models import make_tiny_models
from auxtap.verification.static.bindings import statement_at, unbound_names
from auxtap.verification.static.pinned_tree import pinned_tree

RELEASE = "0.5.23"
HOOKS = Path(__file__).with_name("hidden_state_hooks.py")
HOOKS_LINE = "from sglang.srt.hidden_state_hooks import hooks"
OBSERVER = "hooks.observer"
CASES = (EngineCase("llama", "default"), EngineCase("llama", "chunk16"), EngineCase("llama", "pp2"))
# What the tap calls the functions that the hooks call.
NAMES = {"arm": "model_loaded", "note": "batch_made", "tap": "logits_begin", "stage": "stage_exit"}
PLUGIN = '''\
"""Registers the tap with SGLang's hooks, when it is switched on."""

import os
from types import SimpleNamespace


def load():
    if os.environ.get("AUXTAP_SPOOL"):
        from sglang.srt.hidden_state_hooks import register_observer

        from .tap import engine

        register_observer(SimpleNamespace({calls}))
'''


def hooks_plan(plan: CapturePlan, source: Source) -> CapturePlan:
    """Return the plan with a hook in the place of each call of the tap, and the hooks in the place of the tap."""
    parsed = ParsedTree(source.tree)
    gates = [GateRewriter(path, line=HOOKS_LINE).propose(parsed) for path in plan.touched]
    calls = [as_hook(each) for each in plan.insertions if each.kind != "gate"]
    insertions = tuple(sorted([*gates, *calls], key=lambda each: (str(each.path), each.line)))
    return replace(plan, insertions=insertions, new_files=(NewFile(SRT_ROOT / HOOKS.name, HOOKS.read_bytes()),))


def as_hook(insertion: Insertion) -> Insertion:
    """Return the same call as that of a hook."""
    (call,) = (node for node in ast.walk(ast.parse(insertion.code)) if isinstance(node, ast.Call))
    arguments = ", ".join(ast.unparse(argument) for argument in call.args)
    text = f"if {OBSERVER} is not None:\n    {OBSERVER}.{NAMES[insertion.kind]}({arguments})"
    indentation = insertion.text[: len(insertion.text) - len(insertion.text.lstrip())]
    return replace(insertion, text=indented(text, indentation))


def calls_table(patch_set: PatchSet) -> str:
    """Return the calls as the proposal shows them: file, line, function and statement."""
    lines = ["| file | before line | in | call |\n", "| --- | --- | --- | --- |\n"]
    for each in patch_set.plan.insertions:
        if each.kind != "gate":
            (call,) = (node for node in ast.walk(ast.parse(each.code)) if isinstance(node, ast.Call))
            name = each.path.relative_to(SRT_ROOT)
            lines.append(f"| `{name}` | {each.line} | `{each.scope}` | `{ast.unparse(call)}` |\n")
    return "".join(lines)


def faults(source: Source, patch_set: PatchSet) -> Iterator[str]:
    """Yield what the patch does beside inserting guarded calls whose names are bound."""
    with pinned_tree(source.repository, source.commit) as tree:
        tree.apply(patch_set.patch)
        after = tree.read(tree.changed())
        for file in read_patch(patch_set.patch):
            if file.is_new:
                continue
            if without_inserted(after[file.path], file) != source.tree.files[file.path]:
                yield f"{file.path} without the inserted lines is not the original"
            module = ast.parse(after[file.path])
            for inserted in file.inserted:
                statement = statement_at(module, inserted.line)
                if statement is not None and unbound_names(module, statement):
                    yield f"{file.path}:{inserted.line} reads a name that may be unbound"
                if isinstance(statement, ast.If) and ast.unparse(statement.test) != f"{OBSERVER} is not None":
                    yield f"{file.path}:{inserted.line} is not guarded"
        tree.apply(patch_set.patch, reverse=True)
        if tree.changed():
            yield "taken back, the patch leaves changes behind"


def write_plugin(folder: Path, capture: CapturePlan) -> Path:
    """Write a folder for PYTHONPATH with the tap and an entry point that SGLang finds."""
    shutil.rmtree(folder, ignore_errors=True)
    tap = folder / "hidden_state_tap/tap"
    tap.mkdir(parents=True)
    for file in capture.new_files:
        (tap / file.path.name).write_bytes(file.data)
    calls = ", ".join(f"{hook}=engine.{name}" for name, hook in NAMES.items())
    (tap.parent / "__init__.py").write_text(PLUGIN.format(calls=calls))
    record = folder / "hidden_state_tap-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: hidden_state_tap\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text("[sglang.srt.plugins]\nhidden_state_tap = hidden_state_tap:load\n")
    return folder


def prove(source: Source, patch_set: PatchSet, plugin: Path) -> bool:
    """Serve the tiny model under each setting and print the largest error of its states."""
    cache = cache_layout()
    engine = set_up_engine(source.tree.release, cache, progress=say)
    (model,) = make_tiny_models(["llama"], engine, cache, say)
    with run_folder(cache) as folder, run_folder(cache) as work:
        applied = apply_in(folder, source, patch_set)
        template = replace(launch_template(applied, engine, cache, work / "spool"), plugin=plugin)
        with ForkServer(template) as fork_server:
            runs = [run_case(case, model, fork_server, template, work, say) for case in CASES]
        results = compare_runs(runs, engine.python, applied.release)
    for result in results:
        worst = max((cell.max_rel for cell in result.cells if cell.max_rel is not None), default=float("nan"))
        print(f"{result.case}: {result.problem or f'{worst:.1e} relative (at most {TOLERANCE:.0e})'}")
    return all(result.holds for result in results)


def say(message: str) -> None:
    """Report progress on stderr."""
    print(message, file=sys.stderr)


def main() -> int:
    """Write, check and, if wanted, serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engine", action="store_true")
    options = parser.parse_args()
    source = open_source(f"pypi:{RELEASE}", cache_layout(), say)
    capture = plan_capture(source.tree, ("deepseek", "llama"), ())
    patch_set = write_patch(source.tree, hooks_plan(capture, source))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "hooks.patch").write_bytes(patch_set.patch)
    plugin = write_plugin((options.out / "plugin").absolute(), capture)
    found = list(faults(source, patch_set))
    print(calls_table(patch_set), end="")
    print(f"{len(patch_set.changes)} files, {patch_set.n_inserted} inserted lines, 0 removed")
    for fault in found:
        print(f"fault: {fault}")
    held = not found and (not options.engine or prove(source, patch_set, plugin))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
