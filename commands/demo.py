"""`auxtap demo`: the whole job on the real SGLang and tiny models, each step through the command line."""

import contextlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from auxtap.commands.context import cache_layout
from auxtap.core.errors import AuxtapError, CheckFailedError, UsageError

RELEASE = "0.5.9"
SOURCE = f"pypi:{RELEASE}"
MODELS = ("llama", "kimi_k25")
# What a demo made in its output folder and may make anew.
MARKER = ".auxtap-demo"
MADE = ("generated", "stores", "conversations.jsonl")
CONCURRENCY = 32


@dataclass
class Demo:
    """A running demo: where it writes, and what its steps came to."""

    output: Path
    rows: list[tuple[str, str]] = field(default_factory=list)
    seconds: list[tuple[str, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def worktree(self) -> Path:
        """The patched tree."""
        return self.output / "worktree"

    @property
    def conversations(self) -> Path:
        """The data set that is extracted."""
        return self.output / "conversations.jsonl"

    def run(self, stage: str, arguments: list[str]) -> Mapping[str, Any]:
        """Run one command as a step that must succeed; return its result."""
        from auxtap.commands import child
        from auxtap.commands.views.demo_view import step

        with step(child.shown(arguments)) as running:
            result = child.result_of(arguments, running.progress)
            running.outcome = _outcome(stage, result)
        self.seconds.append((stage, running.seconds))
        return result


def demo(
    output: Annotated[Path, typer.Option(help="Folder for everything that the demo shows.")] = Path("demo-output"),
    json_output: Annotated[bool, typer.Option("--json", help="Print the closing table as JSON.")] = False,
) -> None:
    """Do the whole job once, on the real SGLang 0.5.9 and tiny models, on the CPU."""
    from auxtap.commands.views import console
    from auxtap.commands.views.demo_view import show_closing_table

    running = Demo(output.resolve())
    _begin(running)
    _trace(running)
    patch_folder = _patch(running)
    _apply(running)
    models = _prepare(running)
    for name, path in models.items():
        _extract(running, name, path)
    _prove_settings(running, patch_folder)
    held = not running.failures
    running.rows += [(f"time: {stage}", f"{seconds:.1f} s") for stage, seconds in _by_stage(running)]
    if json_output:
        console.emit_json({"held": held, "failures": running.failures, "figures": dict(running.rows)})
    else:
        show_closing_table(running.rows, held=held)
    if not held:
        raise CheckFailedError("; ".join(running.failures), hint=f"what the demo made is in {running.output}")


def _begin(demo: Demo) -> None:
    """Clear what an earlier demo made in the output folder, and nothing else."""
    from auxtap.commands import child
    from auxtap.verification.engine.demo_conversations import write_conversations

    output = demo.output
    if output.exists() and not (output / MARKER).exists() and any(output.iterdir()):
        raise UsageError(f"{output} is not empty and not an earlier demo's", hint="name another folder with --output")
    output.mkdir(parents=True, exist_ok=True)
    (output / MARKER).touch()
    if demo.worktree.exists():
        child.result_of(["revert", str(demo.worktree), "--force"], lambda _: None)
    for name in MADE:
        path = output / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    write_conversations(demo.conversations)


def _trace(demo: Demo) -> None:
    for model in ("deepseek", "llama"):
        result = demo.run("trace", ["trace", SOURCE, "--model", model])
        sites = sum(len(file["capture_sites"]) for file in result["files"])
        branches = sum(len(file["stage_branches"]) for file in result["files"])
        demo.rows.append((f"trace {model}", f"{sites} sites, {branches} stage branches"))


def _patch(demo: Demo) -> Path:
    out = demo.output / "generated"
    result = demo.run("patch", ["patch", SOURCE, "--layers", _layers(), "--out", str(out)])
    demo.rows.append(
        (
            "patch",
            f"{len(result['files'])} upstream files, {result['inserted_lines']} inserted lines, "
            f"{result['removed_lines']} removed lines, {len(result['new_files'])} new files",
        )
    )
    folder = out / f"sglang-{RELEASE}"
    checks = demo.run("verify", ["verify", str(folder)])["checks"]
    demo.rows.append(("static proof", f"{sum(check['holds'] for check in checks)} of {len(checks)} checks passed"))
    return folder


def _apply(demo: Demo) -> None:
    demo.run("apply", ["apply", SOURCE, "--worktree", str(demo.worktree), "--layers", _layers()])


def _prepare(demo: Demo) -> dict[str, Path]:
    from auxtap.commands.views.demo_view import step
    from auxtap.serving.engine_env import set_up_engine
    from auxtap.verification.engine.tiny_models import make_tiny_models

    demo.run("engine", ["engine", "setup", "--release", RELEASE])
    with step(f"make the tiny models {', '.join(MODELS)}") as running:
        cache = cache_layout()
        models = make_tiny_models(MODELS, set_up_engine(RELEASE, cache), cache, running.progress)
        running.outcome = "8 blocks, hidden size 64, random weights"
    demo.seconds.append(("models", running.seconds))
    return {model.name: model.path for model in models}


def _extract(demo: Demo, name: str, model: Path) -> None:
    """Serve one model, extract the conversations, check the store and hold it against transformers."""
    from auxtap.commands import child
    from auxtap.commands.views.demo_view import step
    from auxtap.serving.processes import choose_port

    store, port = demo.output / "stores" / name, choose_port("127.0.0.1", 0)
    serve = ["serve", "--worktree", str(demo.worktree), "--model-path", str(model), "--cpu", "--port", str(port)]
    with contextlib.ExitStack() as stack:
        with step(child.shown(serve)) as running:
            server = stack.enter_context(child.running_command(serve, running.progress))
            running.outcome = f"ready after {server['ready_s']:.1f} s on {server['url']}"
        demo.seconds.append(("server start", running.seconds))
        extract = ["extract", str(demo.conversations), "--server", server["url"], "--spool", server["spool"]]
        extract += ["--out", str(store), "--tokenizer", str(model), "--concurrency", str(CONCURRENCY)]
        summary = demo.run("extract", extract)
    demo.run("check", ["check", str(store)])
    demo.rows += [
        (f"{name}: server start", f"{server['ready_s']:.1f} s"),
        (
            f"{name}: extracted",
            f"{summary['stored']} samples, {summary['tokens']:,} tokens, {summary['n_bytes']:,} bytes",
        ),
    ]
    _compare(demo, name, store, model)


def _compare(demo: Demo, name: str, store: Path, model: Path) -> None:
    from auxtap.commands.views.demo_view import step
    from auxtap.serving.engine_env import set_up_engine
    from auxtap.verification.engine.engine_proof import TOLERANCE
    from auxtap.verification.engine.reference import compare_store

    with step(f"compare {store.name} with transformers") as running:
        python = set_up_engine(RELEASE, cache_layout()).python
        comparison = compare_store(store, model, python)
        worst = max(state.max_rel for state in comparison.states)
        running.outcome = f"largest relative error {worst:.1e} of {TOLERANCE:.0e} allowed"
    demo.seconds.append(("compare", running.seconds))
    for state in comparison.states:
        demo.rows.append((f"{name}: {state.state}", f"{state.max_rel:.1e} relative, {state.rows:,} rows"))
        if state.max_rel > TOLERANCE or state.rows != comparison.tokens:
            demo.failures.append(f"{name}: {state.state} differs from transformers by {state.max_rel:.1e}")


def _prove_settings(demo: Demo, patch_folder: Path) -> None:
    """Prove the other settings, chunked prefill and pipeline stages, on servers forked from one import."""
    from auxtap.commands import child
    from auxtap.commands.views.demo_view import step

    arguments = ["verify", str(patch_folder), "--engine"]
    with step(child.shown(arguments)) as running:
        ended = child.run_command(arguments, running.progress)
        if not isinstance(ended.result, dict) or "engine" not in ended.result:
            raise child.failure(arguments, ended)
        cases = ended.result["engine"]["cases"]
        running.outcome = f"{sum(case['holds'] for case in cases)} of {len(cases)} cases hold"
    demo.seconds.append(("verify --engine", running.seconds))
    for case in cases:
        name = f"{case['case']['model']} {case['case']['setting']}"
        worst = max((cell["max_rel"] for cell in case["cells"]), default=float("nan"))
        demo.rows.append((f"proof: {name}", f"{worst:.1e} relative over {case['tokens']} tokens"))
        if not case["holds"]:
            demo.failures.append(f"{name}: {case['problem'] or 'a state differs'}")


def _layers() -> str:
    from auxtap.verification.engine.tiny_models import TINY_LAYERS

    return ",".join(str(layer) for layer in TINY_LAYERS)


def _outcome(stage: str, result: Mapping[str, Any]) -> str:
    """Say in a few words what a command came to."""
    match stage:
        case "trace":
            return f"{len(result['files'])} files, {len(result['flows'])} flows"
        case "patch":
            return f"{len(result['files'])} files, {result['inserted_lines']} lines inserted, 0 removed"
        case "verify":
            return f"{len(result['checks'])} checks hold"
        case "apply":
            return f"branch {result['branch']}"
        case "engine":
            return "made" if result["changed"] else "there already"
        case "extract":
            return f"{result['stored']} samples, {result['tokens']:,} tokens, {result['n_bytes']:,} bytes"
        case "check":
            return f"{result['n_parts']} files verified from their bytes"
        case _:
            raise AuxtapError(f"no outcome for {stage}: {json.dumps(dict(result))[:200]}")


def _by_stage(demo: Demo) -> list[tuple[str, float]]:
    """Return the time of each stage, repeated ones added up, in the order they came first."""
    totals: dict[str, float] = {}
    for stage, seconds in demo.seconds:
        totals[stage] = totals.get(stage, 0.0) + seconds
    return [*totals.items(), ("in all", sum(totals.values()))]
