"""The whole experiment: a target trained, served with the tap on, extracted, and draft heads trained on its states.

usage: run.py --out DIR [--steps 700] [--seeds 0,1,2] [--epochs 12]   (`make drafter` runs it with the defaults)

Needs auxtap in the running Python; everything else is made: SGLang's engine environment, a patched worktree in
DIR/tree. What is in DIR already is used again.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from auxtap.commands.context import cache_layout
from auxtap.serving.engine_env import set_up_engine
from auxtap.verification.engine.tiny_models import make_tiny_models

HERE = Path(__file__).resolve().parent
RELEASE, LAYERS = "0.5.9", "2,4,6"
AUXTAP = (sys.executable, "-m", "auxtap.cli")


def run(command: list[str], **more: Any) -> None:
    """Run a command that must succeed, in plain sight."""
    print(f"$ {' '.join(command)}", flush=True)
    subprocess.run(command, check=True, **more)


@contextmanager
def served(tree: Path, model: Path) -> Iterator[dict[str, Any]]:
    """Serve a model from the patched tree, both final states taken; yield what `auxtap serve --json` says."""
    arguments = ["serve", "--worktree", str(tree), "--model-path", str(model), "--cpu", "--port", "0"]
    command = [*AUXTAP, *arguments, "--layers", LAYERS, "--final", "both", "--json"]
    print(f"$ {' '.join(command)}", flush=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        # Not SIGINT, which a job in the background ignores.
        process.terminate()
        process.wait()


def main() -> None:
    """Do every step that is not done yet, then train and judge the heads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    cache = cache_layout()
    engine = set_up_engine(RELEASE, cache, progress=lambda text: print(text, flush=True))
    (like,) = make_tiny_models(["llama"], engine, cache)
    environment = {**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    if not (out / "heldout.jsonl").exists():
        options = ["--like", str(like.path), "--out", str(out), "--steps", str(arguments.steps)]
        run([str(engine.python), str(HERE / "make_target.py"), *options], env=environment)
    if not (out / "tree").exists():
        run([*AUXTAP, "apply", f"pypi:{RELEASE}", "--worktree", str(out / "tree"), "--layers", LAYERS])
    stores = {name: out / f"{name}-store" for name in ("train", "heldout")}
    with served(out / "tree", out / "model") as server:
        for name, store in stores.items():
            where = ["--server", server["url"], "--spool", server["spool"], "--out", str(store)]
            run([*AUXTAP, "extract", str(out / f"{name}.jsonl"), *where])
    options = ["--model", str(out / "model"), "--train", str(stores["train"]), "--heldout", str(stores["heldout"])]
    options += ["--seeds", arguments.seeds, "--epochs", str(arguments.epochs)]
    run([str(engine.python), str(HERE / "train_head.py"), *options], env=environment)


if __name__ == "__main__":
    main()
