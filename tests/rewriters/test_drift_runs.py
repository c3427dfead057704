"""Patched functions run, drifted and not: the inserted calls are made with the very objects that were meant.

Each runs in a process of its own, with stand-ins for all that its module imports, its conditions drawn anew in each of
many runs. In every run that ends, the call must have been made as often as it should.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auxtap.core.source_tree import SourceTree
from auxtap.rewriters.places.insertion import Insertion
from auxtap.tests.rewriters.drifts import DRIFTS, RELEASES, before, drifted, propose, within

pytestmark = [pytest.mark.network, pytest.mark.slow]
FOLLOWED = [(d, r) for d in DRIFTS for r in d.releases if not d.refused]
N_RUNS, LEAST_ENDED = 40, 5


def patched_job(tree: SourceTree, insertion: Insertion) -> dict[str, object]:
    """Return what it takes to run the function around an insertion: its whole module with its lines in it."""
    lines = tree.files[insertion.path].decode().split("\n")
    lines.insert(insertion.line - 1, insertion.text)  # the lines of the text are joined as those of the file
    return {"source": "\n".join(lines), "qualname": insertion.scope, "runs": N_RUNS}


def run_jobs(jobs: list[dict[str, object]]) -> list[dict[str, Any]]:
    script = Path(__file__).with_name("run_patched_script.py")
    run = subprocess.run([sys.executable, "-I", str(script)], input=json.dumps(jobs), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    results: list[dict[str, Any]] = json.loads(run.stdout)
    return results


def wrong_calls(result: dict[str, Any], kind: str) -> list[object]:
    """Return the runs in which the call of that kind was not made as it should."""
    ended = result["ended"]
    assert len(ended) >= LEAST_ENDED, result["failures"]
    if kind == "attach":
        # Made on one of the function's ways only, and then once; that way may break off behind it.
        made = [calls for calls in (*ended, *result["broken_off"]) if calls]
        assert made
        return [calls for calls in made if calls != [["attach", "batch.get_model_worker_batch()", "batch"]]]
    return [calls for calls in ended if len(calls) != 1 or not MEANT[kind](calls[0])]


TAPPED = ("logits_metadata", "info")
# Three blocks run in each run and two of them are chosen.
STAGED = ("list of 2", "sglang.srt.layers.aux_hidden_states.AuxHiddenStateList()")
MEANT: dict[str, Callable[[list[str]], bool]] = {
    "arm": lambda call: call == ["arm", "self"],
    "rank": lambda call: call == ["rank", "self", "dp_rank"],
    "note": lambda call: call[:2] == ["note", "the result"] and call[2] in ("batch", "work"),
    "tap": lambda call: call[1:4] == ["self", "hidden_states", "aux_hidden_states"] and call[4] in TAPPED,
    "stage": lambda call: call[1] == "self" and call[2] in STAGED and call[3] == "forward_batch",
}


def test_a_followed_patch_does_what_it_should_when_it_runs(trees: dict[str, SourceTree]) -> None:
    cases = [(drift, release, drifted(drift, release, trees)) for drift, release in FOLLOWED]
    lines = [next(item for item in propose(tree) if drift.line in item.text) for drift, _, tree in cases]
    results = run_jobs([patched_job(tree, line) for (_, _, tree), line in zip(cases, lines, strict=True)])
    for (drift, release, _), line, result in zip(cases, lines, results, strict=True):
        assert wrong_calls(result, line.kind) == [], (drift.name, release)


@pytest.mark.parametrize("release", RELEASES)
def test_the_patch_of_a_release_does_what_it_should_when_it_runs(release: str, trees: dict[str, SourceTree]) -> None:
    lines = propose(trees[release])
    results = run_jobs([patched_job(trees[release], line) for line in lines])
    assert {line.kind for line in lines} >= {"arm", "note", "tap"}
    for line, result in zip(lines, results, strict=True):
        assert wrong_calls(result, line.kind) == [], line


def test_running_tells_a_wrong_patch_from_a_right_one(trees: dict[str, SourceTree]) -> None:
    """What is refused above would be seen here too: patched all the same, the calls are given other objects."""
    tree = trees["0.5.9"]
    right = {line.kind: line for line in propose(tree)}
    wrong = {
        "note": within("ForwardBatch.init_new", before(r"return ret$", "ret = cls.__new__(cls)")),
        "stage": within("LlamaModel.forward", before(r"if _auxtap is not None", "aux_hidden_states = []")),
        "tap": within(
            "LogitsProcessor.forward", before(r"if _auxtap is not None", "hidden_states = hidden_states * 2")
        ),
        "arm": within("ModelRunner.initialize", before(r"if _auxtap is not None", "if self.skips:\n    return")),
    }
    jobs = []
    for kind, change in wrong.items():
        job = patched_job(tree, right[kind])
        jobs.append({**job, "source": change(str(job["source"]))})
    for kind, result in zip(wrong, run_jobs(jobs), strict=True):
        assert wrong_calls(result, kind), kind
