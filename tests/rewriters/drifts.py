"""Drift to inject into real releases, and what is to become of it: a list with the outcome of each.

A followed drift must insert exactly the line that is spelled out here; a refused one must say what it found.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.rewriters.patch.registry import statement_rewriters
from auxtap.rewriters.places.insertion import Insertion
from auxtap.rewriters.places.syntax import ParsedTree
from auxtap.tests.shaped import BATCH, LLAMA, LOGITS, RUNNER

SCHEDULE = SRT_ROOT / "managers/schedule_batch.py"
SCHEDULER = SRT_ROOT / "managers/scheduler.py"
RELEASES = ("0.4.9.post6", "0.5.9", "0.5.23")
Change = Callable[[str], str]


def within(qualname: str, change: Change) -> Change:
    """Apply a change to one method's text only."""
    owner, _, function = qualname.rpartition(".")

    def apply(text: str) -> str:
        start = re.search(rf"^class {owner}\b", text, re.MULTILINE)
        assert start is not None, owner
        begin = re.compile(rf"^    def {function}\(", re.MULTILINE).search(text, start.end())
        assert begin is not None, qualname
        end = re.compile(r"^    (?:def|@)|^\S", re.MULTILINE).search(text, begin.end())
        stop = len(text) if end is None else end.start()
        return text[: begin.start()] + change(text[begin.start() : stop]) + text[stop:]

    return apply


def word(old: str, new: str) -> Change:
    return lambda text: re.sub(rf"\b{old}\b", new, text)


def before(pattern: str, lines: str) -> Change:
    """Insert lines before the first line that matches, with its indentation."""

    def apply(text: str) -> str:
        found = re.search(rf"^([ ]*){pattern}", text, re.MULTILINE)
        assert found is not None, pattern
        added = "".join(f"{found[1]}{line}\n" for line in lines.split("\n"))
        return text[: found.start()] + added + text[found.start() :]

    return apply


@dataclass(frozen=True)
class Drift:
    """A change of one file; `line` is what the patch must insert then, `refused` what it must say instead."""

    name: str
    releases: tuple[str, ...]
    path: PurePosixPath
    change: Change
    line: str = ""
    refused: str = ""


EXIT = r"if not self\.pp_group\.is_last_rank:"
FLAG = r"if self\.eagle_use_aux_hidden_state:"
LLAMA_LOOP = r"for i in range\(self\.start_layer, self\.end_layer\):"
ALL = ("0.5.9", "0.5.23")
DRIFTS = (
    # A renamed argument or name.
    Drift(
        "batch renamed",
        ALL,
        BATCH,
        within("ForwardBatch.init_new", word("batch", "work")),
        line="_auxtap.note(ret, work)",
    ),
    Drift(
        "made renamed",
        ALL,
        BATCH,
        within("ForwardBatch.init_new", word("ret", "made")),
        line="_auxtap.note(made, batch)",
    ),
    Drift(
        "metadata renamed",
        ALL,
        LOGITS,
        within("LogitsProcessor.forward", word("logits_metadata", "info")),
        line="_auxtap.tap(self, hidden_states, aux_hidden_states, info)",
    ),
    Drift(
        "states renamed",
        ALL,
        LOGITS,
        within("LogitsProcessor.forward", word("aux_hidden_states", "extra")),
        refused="looked for a parameter aux_hidden_states",
    ),
    Drift(
        "accumulator renamed",
        ALL,
        LLAMA,
        within("LlamaModel.forward", word("aux_hidden_states", "kept")),
        line="_auxtap.stage(self, kept, forward_batch)",
    ),
    Drift(
        "class of the batch renamed",
        ALL,
        BATCH,
        within("ForwardBatch.init_new", lambda text: re.sub(r"batch: \w+", "batch: Rows", text, count=1)),
        refused="a batch of class ModelWorkerBatch or ScheduleBatch",
    ),
    # A moved call.
    Drift(
        "flag test moved into a branch",
        ("0.5.9",),
        RUNNER,
        within(
            "ModelRunner.initialize",
            lambda text: re.sub(rf"^( +){FLAG}\n", r"\1if args.draft and self.draft:\n", text, flags=re.M),
        ),
        refused="arm: no single anchor",
    ),
    Drift(
        "configure moved to another method",
        ("0.5.23",),
        RUNNER,
        lambda text: (
            word("init_attention_backends", "begin_backends")(text)
            + "\n\ndef run(runner):\n    runner.begin_backends()\n"
        ),
        line="_auxtap.arm(self)",
    ),
    Drift(
        "test of the metadata moved behind a conversion",
        ALL,
        LOGITS,
        within(
            "forward",
            before(r"if isinstance\(logits_metadata, ForwardBatch\):", "hidden_states = hidden_states.float()"),
        ),
        refused="found other statements before it",
    ),
    # A second call site.
    Drift(
        "a second batch is made",
        ALL,
        BATCH,
        within(
            "init_new", lambda text: text + "        ret = cls(forward_mode=batch.forward_mode)\n        return ret\n\n"
        ),
        refused="found 2, at lines",
    ),
    Drift(
        "a second configure",
        ("0.5.23",),
        RUNNER,
        before(
            r"def init_attention_backends\(self\):",
            "def again(self):\n    configure_aux_hidden_state_capture(model=self.model)\n",
        ),
        refused="arm: no single anchor",
    ),
    Drift(
        "a second stage exit",
        ALL,
        LLAMA,
        within("LlamaModel.forward", before(EXIT, "if not self.pp_group.is_last_rank:\n    return PPProxyTensors({})")),
        refused="stage",
    ),
    # A removed field.
    Drift(
        "the batch lists no requests",
        ("0.5.9",),
        SCHEDULE,
        lambda text: re.sub(r"^    reqs: Optional\[List\[Req\]\] = None\n", "", text, flags=re.MULTILINE),
        line="_auxtap.attach(worker_batch_or_batch, batch)",
    ),
    Drift(
        "the scheduler's batch lists no requests",
        ("0.5.23",),
        SCHEDULE,
        lambda text: re.sub(r"^    reqs: List\[Req\].*\n", "", text, flags=re.MULTILINE),
        refused="attach: no single anchor",
    ),
    # Another object in the place of one that is handed over: the call would be made, and mean something else.
    Drift(
        "the made batch is replaced",
        RELEASES,
        BATCH,
        within("ForwardBatch.init_new", before(r"return ret$", "ret = cls.__new__(cls)")),
        refused="looked for ret to stay what it is; found it bound anew",
    ),
    Drift(
        "the batch that is read is replaced",
        RELEASES,
        BATCH,
        within("ForwardBatch.init_new", before(r"ret = cls\(", "batch = batch.filtered()")),
        refused="looked for batch to stay what it is; found it bound anew",
    ),
    Drift(
        "the backbone gets another batch",
        ALL,
        LLAMA,
        within("LlamaModel.forward", before(LLAMA_LOOP, "forward_batch, scale = forward_batch.split()")),
        refused="looked for forward_batch to stay what it is; found it bound anew",
    ),
    Drift(
        "the captured states are replaced",
        ALL,
        LLAMA,
        within("LlamaModel.forward", before(EXIT, "aux_hidden_states = []")),
        refused="what becomes of the collector here is not followed",
    ),
    # What changes nothing for the patch: it is followed as it is.
    Drift(
        "a loop over other things before the place",
        ALL,
        BATCH,
        within("ForwardBatch.init_new", before(r"ret = cls\(", "for other in batch.others():\n    other.prepare()")),
        line="_auxtap.note(ret, batch)",
    ),
    Drift(
        "the accumulator is made in two ways",
        ("0.5.9",),
        LLAMA,
        within(
            "LlamaModel.forward",
            before(LLAMA_LOOP, "if self.packs:\n    aux_hidden_states = []\nelse:\n    aux_hidden_states = []"),
        ),
        line="_auxtap.stage(self, aux_hidden_states, forward_batch)",
    ),
    # A new early return.
    Drift(
        "init_new may return first",
        ALL,
        BATCH,
        within("ForwardBatch.init_new", before(r"ret = cls\(", "if batch is None:\n    return None")),
        refused="found a return before it",
    ),
    Drift(
        "forward may return first",
        ALL,
        LOGITS,
        within(
            "forward",
            before(r"if isinstance\(logits_metadata, ForwardBatch\):", "if lm_head is None:\n    return None"),
        ),
        refused="found other statements before it",
    ),
    Drift(
        "the runner may return first",
        ("0.5.9",),
        RUNNER,
        within("ModelRunner.initialize", before(FLAG, "if self.skip:\n    return")),
        refused="found a return before it",
    ),
    Drift(
        "the backbone may return first",
        ALL,
        LLAMA,
        within(
            "LlamaModel.forward", before(EXIT, "if forward_batch.forward_mode.is_idle():\n    return hidden_states")
        ),
        refused="found a return before it",
    ),
)

# The places stand, but a value that the tap reads there is gone, or comes from elsewhere. `refused` is what the check
# "values known" says; the patch is not written then.
VALUE_DRIFTS = (
    Drift(
        "a field of the batch renamed",
        RELEASES,
        BATCH,
        word("extend_seq_lens_cpu", "extend_rows_cpu"),
        refused="ForwardBatch has no field extend_seq_lens_cpu",
    ),
    Drift(
        "a field filled from another value",
        RELEASES,
        BATCH,
        lambda text: re.sub(r"(\bret\.extend_prefix_lens_cpu = ).*", r"\1batch.seq_lens", text),
        refused="init_new gives",
    ),
    Drift(
        "a forward mode renamed",
        RELEASES,
        BATCH,
        lambda text: text.replace("    MIXED = ", "    JOINED = ", 1),
        refused="ForwardMode has no MIXED",
    ),
    Drift(
        "a request's ids renamed",
        RELEASES,
        SCHEDULE,
        word("origin_input_ids", "prompt_ids"),
        refused="Req does not set origin_input_ids",
    ),
    Drift(
        "the depth of the model renamed",
        RELEASES,
        SRT_ROOT / "configs/model_config.py",
        word("num_hidden_layers", "n_blocks"),
        refused="does not set num_hidden_layers",
    ),
    Drift(
        "a function of the ranks renamed",
        RELEASES,
        SRT_ROOT / "distributed/parallel_state.py",
        lambda text: text.replace("get_pp_group", "get_stages"),
        refused="has no get_pp_group",
    ),
)
# Begins the part of the page that `test_mutations.py` holds.
TITLE = "\n## Values\n"
_PAGE_HEAD = """# Drift, and what becomes of the patch

What later releases may do to the places that a patch hangs on, done by program to real ones. The patch is written anew
from the changed tree each time: it must follow with the right names, or say what it found and write nothing. Where it
follows, the patched function is run as well, with stand-ins for all that its module imports and its conditions drawn
anew in each of many runs: the inserted call must be made exactly once, with the objects that were meant. The tests hold
this page against their list (`tests/rewriters/drifts.py`); with `AUXTAP_WRITE_FIXTURES=1` they write it.

| drift | file | releases | outcome |
| --- | --- | --- | --- |
"""


def drift_page() -> str:
    """Return the page that lists every drift with its outcome."""
    rows = []
    for drift in (*DRIFTS, *VALUE_DRIFTS):
        outcome = f"refused: {drift.refused}" if drift.refused else f"followed: `{drift.line}`"
        rows.append(
            f"| {drift.name} | {drift.path.relative_to(SRT_ROOT)} | {', '.join(drift.releases)} | {outcome} |\n"
        )
    return _PAGE_HEAD + "".join(rows)


def drifted(drift: Drift, release: str, trees: dict[str, SourceTree]) -> SourceTree:
    tree = trees[release]
    old = tree.files[drift.path].decode()
    new = drift.change(old)
    assert new != old, "the drift did not change the file"
    compile(new, str(drift.path), "exec", dont_inherit=True)
    return replace(tree, files={**tree.files, drift.path: new.encode()})


def propose(tree: SourceTree) -> list[Insertion]:
    """Return every statement that a patch for Llama would insert; the tree's other models are left aside."""
    files = ParsedTree(tree)
    return [rewriter.propose(files) for rewriter in statement_rewriters(("llama",), files)]
