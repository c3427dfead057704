"""Every rewriter: what it refuses, then what it inserts; before/after pairs lie under `fixtures/rewriters`."""

import os
import re
from pathlib import PurePosixPath

import pytest

from auxtap.core.errors import ExitCode, PatchError
from auxtap.rewriters.patch.diff import write_patch
from auxtap.rewriters.patch.plan import TAP_ROOT, plan_capture
from auxtap.rewriters.patch.registry import DEFAULT_MODELS
from auxtap.rewriters.places.arm import ArmRewriter
from auxtap.rewriters.places.insertion import guarded_call, indented
from auxtap.rewriters.places.syntax import ParsedTree
from auxtap.tests.shaped import (
    BATCH,
    BATCHES,
    COLLECTOR,
    COLLECTORS,
    FIXTURES,
    LLAMA,
    LOGITS,
    MIXTRAL,
    OLD_BATCHES,
    RUNNER,
    SCHEDULER,
    TARGETS,
    fixture,
    shaped_files,
    shaped_tree,
)

LAYERS = (3, 31, 59)


def cases(suffix: str) -> list[tuple[str, str]]:
    return sorted((path.parent.name, path.name.removesuffix(suffix)) for path in FIXTURES.glob(f"*/*{suffix}"))


def with_neighbours(path: PurePosixPath, data: bytes) -> dict[PurePosixPath, bytes]:
    """Return a file with what else its case needs: the scheduler matters only where the batch lists no requests."""
    more = {SCHEDULER: {BATCHES: OLD_BATCHES}, LLAMA: {COLLECTORS: COLLECTOR}}
    return {path: data, **more.get(path, {})}


def models_for(path: PurePosixPath) -> tuple[str, ...]:
    return ("mixtral",) if path == MIXTRAL else ("llama",)


def patched(path: PurePosixPath, data: bytes) -> bytes:
    """Return one file of the shaped tree after the patch."""
    tree = shaped_tree(with_neighbours(path, data))
    patch_set = write_patch(tree, plan_capture(tree, models_for(path), LAYERS))
    (change,) = [change for change in patch_set.changes if change.path == path]
    return change.after


REFUSED = {
    ("arm", "twice"): ("ModelRunner.initialize", "found 2, at lines 6, 9"),
    ("arm", "elsewhere"): ("ModelRunner.initialize", "found none among its 2 statements in lines 6-9"),
    ("arm", "two_functions"): ("ModelRunner.initialize", "the function itself; found 2"),
    ("arm", "early_return"): ("ModelRunner.initialize", "found a return before it, at line 7"),
    ("arm", "configure_twice"): ("ModelRunner", "found 2, at 10 (ModelRunner.init_attention_backends), 13"),
    ("arm", "uncalled"): ("ModelRunner.set_up_capture", "a call of set_up_capture; found none"),
    ("rank", "twice"): ("ModelRunner.__init__", "the function itself; found 2, at lines 7, 14"),
    ("attach", "twice"): ("Scheduler.run_batch", "found 2, at lines 8, 10"),
    ("attach", "elsewhere"): ("Scheduler.run_batch", "within the test of is_generation; found none"),
    ("note", "early_return"): ("ForwardBatch.init_new", "found a return before it, at line 8"),
    ("note", "twice"): ("ForwardBatch.init_new", "found 2, at lines 7, 8"),
    ("note", "shared_line"): ("ForwardBatch.init_new", "sharing its line"),
    ("note", "other_batch"): ("ForwardBatch.init_new", "found batch: Rows"),
    ("tap", "late"): ("LogitsProcessor.forward", "other statements before it, from line 6"),
    ("tap", "replaced"): ("LogitsProcessor.forward", "other statements before it, from line 6"),
    ("tap", "renamed"): ("LogitsProcessor.forward", "looked for a parameter hidden_states"),
    ("stage", "no_exit"): ("LlamaModel.forward", "stage exits at none"),
    ("stage", "two_exits"): ("LlamaModel.forward", "stage exits at 15"),
    ("stage", "early_return"): ("LlamaModel.forward", "line 13: it returns without what it captured"),
    ("stage", "unknown_way"): ("LlamaModel.forward", "it fills 0 collectors that it makes before its loop"),
    ("stage", "no_batch"): ("LlamaModel.forward", "one parameter of class ForwardBatch; found 0"),
    ("loop", "other_norm"): (str(MIXTRAL), "no norm behind the loop adds the residual"),
    ("loop", "no_norm"): (str(MIXTRAL), "no norm behind the loop adds the residual"),
    ("loop", "other_count"): (str(MIXTRAL), "the loop does not count the blocks: for i in range(self.n_rounds)"),
    ("loop", "two_blocks"): (str(MIXTRAL), "a round has 2 calls of a block"),
    ("loop", "two_loops"): (str(MIXTRAL), "2 loops run blocks"),
    ("loop", "one_way"): (str(MIXTRAL), "the loop runs only on one way through the function"),
    ("loop", "three_values"): (str(MIXTRAL), "not a state and the residual that it was given"),
    ("loop", "no_batch"): (str(MIXTRAL), "its forward has 0 parameters of class ForwardBatch"),
    ("loop", "lost_stage"): (str(MIXTRAL), "0 stage exits stand behind its loop"),
    ("loop", "kept_residual"): (str(MIXTRAL), "the blocks keep the residual out of the loop"),
    ("loop", "early_return"): (str(MIXTRAL), "a return at line 12 may come before it is done"),
    ("gate", "no_imports"): (str(RUNNER), "found none"),
    ("gate", "patched"): (str(RUNNER), "is patched already"),
}


def test_every_refusal_is_expected() -> None:
    assert sorted(REFUSED) == cases(".refused.py")


@pytest.mark.parametrize(("kind", "case"), sorted(REFUSED))
def test_refuses(kind: str, case: str) -> None:
    path = TARGETS[kind]
    tree = shaped_tree(with_neighbours(path, fixture(kind, f"{case}.refused")))
    with pytest.raises(PatchError) as caught:
        plan_capture(tree, models_for(path), LAYERS)
    assert caught.value.exit_code == ExitCode.PATCH
    assert str(path) in caught.value.message
    for text in REFUSED[kind, case]:
        assert text in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(("kind", "case"), cases(".before.py"))
def test_inserts(kind: str, case: str) -> None:
    before = fixture(kind, f"{case}.before")
    after = patched(TARGETS[kind], before)
    expected = FIXTURES / kind / f"{case}.after.py"
    if os.environ.get("AUXTAP_WRITE_FIXTURES"):
        expected.write_bytes(after)
    assert after == expected.read_bytes()


@pytest.mark.parametrize(("kind", "case"), cases(".before.py"))
def test_leaves_every_other_byte_alone_and_is_refused_a_second_time(kind: str, case: str) -> None:
    before = fixture(kind, f"{case}.before")
    after = patched(TARGETS[kind], before)
    assert b"".join(line for line in after.splitlines(keepends=True) if b"_auxtap" not in line) == before
    assert sum(b"_auxtap" in line for line in after.splitlines()) in (3, 5)
    with pytest.raises(PatchError, match="patched already"):
        patched(TARGETS[kind], after)


def test_calls_that_are_too_long_are_broken_as_the_formatter_breaks_them() -> None:
    call = guarded_call("block_sum", "self", "layer_index", "hidden_states", "residual", "forward_batch")
    arguments = "self, layer_index, hidden_states, residual, forward_batch"
    fits = f"    if _auxtap is not None:\n        _auxtap.block_sum({arguments})"
    assert indented(call, " " * 4) == fits
    assert indented(call, " " * 12).split("\n")[1:] == [
        16 * " " + "_auxtap.block_sum(",
        20 * " " + arguments,
        16 * " " + ")",
    ]
    assert indented(call, " " * 28).split("\n")[2:4] == [36 * " " + "self,", 36 * " " + "layer_index,"]
    assert indented(call, "\t").split("\n")[1].startswith("\t\t_auxtap.block_sum(self")


@pytest.mark.parametrize("path", [RUNNER, BATCH, LOGITS, LLAMA])
def test_keeps_windows_line_ends_and_a_byte_order_mark(path: PurePosixPath) -> None:
    before = b"\xef\xbb\xbf" + shaped_files()[path].replace(b"\n", b"\r\n")
    after = patched(path, before)
    assert after.startswith(b"\xef\xbb\xbf")
    assert after.count(b"\n") == after.count(b"\r\n") == before.count(b"\n") + 3


def test_refuses_line_ends_that_git_does_not_count() -> None:
    before = shaped_files()[RUNNER].replace(b"import logging\n\n", b"import logging\r\r")
    with pytest.raises(PatchError, match="line ends"):
        patched(RUNNER, before)


def test_refuses_a_file_that_is_not_python() -> None:
    with pytest.raises(PatchError, match="cannot parse"):
        patched(RUNNER, b"def broken(:\n")


def test_refuses_a_tree_without_the_file() -> None:
    tree = shaped_tree()
    without = {path: data for path, data in tree.files.items() if path != LOGITS}
    with pytest.raises(PatchError, match=f"no {re.escape(str(LOGITS))}"):
        plan_capture(type(tree)(tree.release, tree.origin, tree.commit, without), DEFAULT_MODELS, LAYERS)


def test_refuses_a_tree_that_holds_the_tap() -> None:
    tree = shaped_tree({TAP_ROOT / "gate.py": b"tap = None\n"})
    with pytest.raises(PatchError, match="patched already"):
        plan_capture(tree, DEFAULT_MODELS, LAYERS)


def test_a_batch_that_does_not_list_its_requests_gets_them_from_the_scheduler() -> None:
    tree = shaped_tree({BATCHES: OLD_BATCHES, SCHEDULER: fixture("attach", "plain.before")})
    plan = plan_capture(tree, DEFAULT_MODELS, LAYERS)
    assert [each.kind for each in plan.insertions if each.path == SCHEDULER] == ["gate", "attach"]
    with pytest.raises(PatchError, match=f"attach: no {SCHEDULER}"):
        plan_capture(shaped_tree({BATCHES: OLD_BATCHES}), DEFAULT_MODELS, LAYERS)


def test_a_rewriter_parses_each_file_once() -> None:
    files = ParsedTree(shaped_tree())
    ArmRewriter().propose(files)
    assert files.parsed("arm", RUNNER) is files.parsed("gate", RUNNER)
