"""Roles of capture sites and stage branches on small sources, and what must not change them."""

import re
from collections.abc import Callable

import pytest

from auxtap.core.errors import SourceError
from auxtap.core.source_tree import SRT_ROOT
from auxtap.tests.tracer.conftest import read_fixture
from auxtap.tracer.branches import branch_roles as branches
from auxtap.tracer.branches import stage_uses
from auxtap.tracer.report.entries import FileTrace, Mentions
from auxtap.tracer.report.roles import ROLES
from auxtap.tracer.sites import site_registry
from auxtap.tracer.sites import site_roles as sites
from auxtap.tracer.tracing import trace_file

Tracer = Callable[[str | bytes], FileTrace]
FIXTURES = ("models/plain", "models/fancy", "models/inlayer", "models/hollow", "layers/logits_processor")


def shape(trace: FileTrace) -> list[tuple[str, str, str]]:
    """Return what must survive a change of layout: role, name and scope, in order."""
    found = [(site.role, site.name, site.scope) for site in trace.capture_sites]
    return found + [(branch.role, branch.test, branch.scope) for branch in trace.stage_branches]


def test_every_rule_has_a_sentence_and_every_sentence_a_rule() -> None:
    assert len(sites.RULE_MODULES) == 4
    assert len(branches.RULE_MODULES) == 1
    ruled = {rule.role for rule in site_registry.RULES} | {rule.role for rule in stage_uses.RULES}
    assert ruled == set(ROLES)
    site_roles = {rule.role for rule in site_registry.RULES}
    assert site_roles == {role.name for role in ROLES.values() if not role.is_branch}
    for role in ROLES.values():
        assert role.explanation.endswith(".")
        assert role.explanation.count(". ") == 0


def test_plain_model(trace_source: Tracer) -> None:
    trace = trace_source(read_fixture("models/plain"))
    assert [site.role for site in trace.capture_sites] == [
        "layers_init",
        "accumulator_init",
        "layer_test",
        "append",
        "empty_test",
        "return_pair",
        "flag_init",
        "default",
        "flag_test",
        "unpack",
        "hand_over",
        "setter",
        "flag_set",
        "layers_set",
        "layers_set",
    ]
    assert [(branch.role, branch.form, branch.negated, branch.test) for branch in trace.stage_branches] == [
        ("module_placement", "if_else", False, "is_first_rank"),
        ("module_placement", "if_else", False, "is_last_rank"),
        ("stage_entry", "if_else", False, "is_first_rank"),
        ("stage_exit", "if", True, "is_last_rank"),
        ("module_placement", "if_else", False, "is_last_rank"),
        ("logits_gate", "if", False, "is_last_rank"),
        ("selection_gate", "early_return", True, "is_last_rank"),
    ]
    by_role = {site.role: site for site in trace.capture_sites}
    assert by_role["append"].value == "hidden_states + residual"
    assert by_role["append"].note == "input of block i, before its norm; not a final-layer state"
    assert by_role["hand_over"].to == "self.logits_processor"
    sets = [(site.offset, site.value) for site in trace.capture_sites if site.role == "layers_set"]
    assert sets == [(0, "[2, num_layers // 2, num_layers - 3]"), (1, "[val + 1 for val in layer_ids]")]
    exit_branch = trace.stage_branches[3]
    assert (exit_branch.returns, exit_branch.drops_aux) == ("Parcel", True)
    entry = trace.stage_branches[2]
    assert entry.note == "first stage embeds, later stages take hidden_states and residual from Parcel"
    assert trace.mentions == Mentions(imports=0, strings=2, comments=1)


def test_notes_of_a_gathering_model(trace_source: Tracer) -> None:
    source = read_fixture("models/fancy")
    trace = trace_source(source)
    lines = source.decode().split("\n")
    setting = 1 + next(i for i, line in enumerate(lines) if "is_alpha()" in line)
    gather = next(site for site in trace.capture_sites if site.role == "gather")
    assert gather.note == (
        "tensor_model_parallel_all_gather of hidden_states + residual over dim 0; only with the alpha or beta "
        f"all-to-all backend (line {setting}) and only for i > n_dense"
    )
    first, second = (site for site in trace.capture_sites if site.role == "append")
    assert first.note == f"the gathered copy of the SAME quantity as line {second.line}"
    notes = {branch.role: branch.note for branch in trace.stage_branches}
    assert notes["first_stage_only"] == "context-parallel split of the embedded input"
    assert notes["last_stage_only"] == "context-parallel gather of the final state; the aux states are not gathered"


def test_a_note_goes_with_what_it_says(trace_source: Tracer) -> None:
    source = read_fixture("models/fancy").decode()
    other = source.replace("all_gather(hidden_states + residual", "all_gather(hidden_states")
    trace = trace_source(other)
    assert next(site.note for site in trace.capture_sites if site.role == "append") is None
    elsewhere = source.replace("self.spread = True", "self.wide = True")
    gather = next(site for site in trace_source(elsewhere).capture_sites if site.role == "gather")
    assert gather.note is not None
    assert "backend" not in gather.note
    assert "only for spread" in gather.note


def test_capture_after_the_block_is_its_output(trace_source: Tracer) -> None:
    trace = trace_source(
        "class M:\n"
        "    def forward(self, x, batch):\n"
        "        aux_hidden_states = []\n"
        "        for index, layer in enumerate(self.layers):\n"
        "            x = layer(batch, x)\n"
        "            if index in self.layers_to_capture:\n"
        "                aux_hidden_states.append(x)\n"
        "        return x, aux_hidden_states\n"
    )
    append = next(site for site in trace.capture_sites if site.role == "append")
    assert append.note == "output of block index"


def test_in_layer_capture(trace_source: Tracer) -> None:
    trace = trace_source(read_fixture("models/inlayer"))
    hands = [site for site in trace.capture_sites if site.role == "collector_hand_in"]
    assert [site.to for site in hands] == ["self.communicator.prepare", "layer"]
    roles = [site.role for site in trace.capture_sites]
    for role in ("layer_mark", "layer_test", "layers_loop", "setter_test", "setter_call", "parameter"):
        assert role in roles
    calls = [(site.to, site.offset) for site in trace.capture_sites if site.role == "setter_call"]
    assert calls == [("self.model", 0), ("self.model", 1), ("self.language_model", 0)]


def test_consumer(trace_source: Tracer) -> None:
    trace = trace_source(read_fixture("layers/logits_processor"))
    assert [site.role for site in trace.capture_sites] == [
        "parameter",
        "pass_on",
        "pass_on",
        "parameter",
        "none_test",
        "prune",
        "parameter",
        "none_test",
        "join",
        "store",
    ]


@pytest.mark.parametrize("name", FIXTURES)
def test_nothing_unknown_in_the_fixtures(trace_source: Tracer, name: str) -> None:
    assert trace_source(read_fixture(name)).n_unknown == 0


def rename(source: str) -> str:
    """Rename everything that is not one of the pipeline's own names."""
    for old in ("hidden_states", "residual", "layer", "num_layers", "group", "model", "val"):
        source = re.sub(rf"(?<![\w\"']){old}(?![\w\"'=])", f"other_{old}", source)
    return source


def indent(source: str) -> str:
    return "\n".join(re.sub(r"^ +", lambda found: found[0] * 2, line) for line in source.split("\n"))


def comment(source: str) -> str:
    return "\n".join(f"{line}  # a remark" if line.endswith(("[]", ":", ")")) else line for line in source.split("\n"))


def wrap(source: str) -> str:
    source = re.sub(
        r"return hidden_states, aux_hidden_states", "return (\n  hidden_states,\n  aux_hidden_states,\n)", source
    )
    source = re.sub(r"\.append\((.*)\)", r".append(\n  (\1)\n)", source)
    source = re.sub(r"torch\.cat\((\w+), ", r"torch.cat(\n  \1,\n  ", source)
    return re.sub(r"if (self\.group\.is_\w+_rank):", r"if (\n  \1\n):", source)


@pytest.mark.parametrize("change", [rename, indent, comment, wrap, lambda text: wrap(comment(indent(rename(text))))])
@pytest.mark.parametrize("name", FIXTURES)
def test_layout_and_names_do_not_change_roles(trace_source: Tracer, name: str, change: Callable[[str], str]) -> None:
    source = read_fixture(name).decode()
    before, after = shape(trace_source(source)), shape(trace_source(change(source)))
    assert change(source) != source
    assert after == before


def test_line_ends_and_byte_order_mark_do_not_matter(trace_source: Tracer) -> None:
    source = read_fixture("models/plain")
    same = trace_source(source)
    assert trace_source(b"\xef\xbb\xbf" + source.replace(b"\n", b"\r\n")) == same


def test_a_lost_or_doubled_site_shows(trace_source: Tracer) -> None:
    source = read_fixture("models/plain").decode()
    line = "                aux_hidden_states.append(hidden_states + residual)\n"
    whole = shape(trace_source(source))
    assert len(shape(trace_source(source.replace(line, "                pass\n")))) == len(whole) - 1
    assert len(shape(trace_source(source.replace(line, line * 2)))) == len(whole) + 1


@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\n    return x.aux_hidden_states.numpy()\n",
        "def f(x):\n    print(x.layers_to_capture[0])\n",
        "def f(x):\n    while x.group.is_last_rank:\n        x.step()\n",
        "def f(x):\n    if x.group.is_last_rank:\n        x.step()\n",
        "def f(x):\n    del x.capture_aux_hidden_states\n",
    ],
)
def test_an_unfamiliar_shape_is_unknown(trace_source: Tracer, code: str) -> None:
    trace = trace_source(code)
    assert trace.n_unknown == 1
    assert trace.unknown_scopes == ("f",)


def test_mentions_are_counted_apart(trace_source: Tracer) -> None:
    trace = trace_source(
        "# layers_to_capture and is_last_rank\n"
        "from somewhere import AuxHiddenStateList as Collected\n"
        "TEXT = f'aux_hidden_states of {len(TEXT)}'\n"
        "def f():\n"
        "    'capture_aux_hidden_states'\n"
        "    return 1  # not my_aux_hidden_states_list, but aux_hidden_states\n"
    )
    assert trace.capture_sites == ()
    assert trace.stage_branches == ()
    assert trace.mentions == Mentions(imports=1, strings=2, comments=3)


def test_class_headers_and_nested_functions(trace_source: Tracer) -> None:
    trace = trace_source(
        "class Outer:\n"
        "    capture_aux_hidden_states: bool = False\n"
        "    class Inner:\n"
        "        def run(self):\n"
        "            def body():\n"
        "                aux_hidden_states = []\n"
        "            return body\n"
        "if True:\n"
        "    class Late:\n"
        "        def run(self):\n"
        "            aux_hidden_states = []\n"
    )
    assert [(site.line, site.role, site.scope) for site in trace.capture_sites] == [
        (2, "flag_init", "Outer"),
        (6, "accumulator_init", "Outer.Inner.run.body"),
        (11, "accumulator_init", "Late.run"),
    ]


@pytest.mark.parametrize(
    "data", [b"def aux_hidden_states(:\n", b"# coding: nonsense\naux_hidden_states = 1\n", b"\xff aux_hidden_states"]
)
def test_what_is_not_python_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError, match="sample"):
        trace_file(SRT_ROOT / "sample.py", data)
