"""Whole trees: which files are traced, how classes reach their backbone, facts and hazards."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from auxtap.core.errors import SourceError, UsageError
from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tracer.flow.layers import resolve_layers
from auxtap.tracer.flow.steps import step_of
from auxtap.tracer.report.roles import Step
from auxtap.tracer.report.trace_report import Hazard, TraceReport
from auxtap.tracer.tracing import trace_tree

Files = dict[PurePosixPath, bytes]
MakeTree = Callable[[Files], SourceTree]
FANCY = SRT_ROOT / "models/fancy.py"
ARGS = SRT_ROOT / "server_args.py"


def hazards(report: TraceReport) -> dict[str, Hazard]:
    return {hazard.name: hazard for hazard in report.hazards}


def traced(report: TraceReport) -> list[str]:
    return [str(trace.file.relative_to(SRT_ROOT)) for trace in report.files]


def test_a_model_brings_what_it_passes_through(fixture_tree: SourceTree) -> None:
    report = trace_tree(fixture_tree, ["picture"])
    assert traced(report) == [
        "models/picture.py",
        "models/plain.py",
        "model_executor/model_runner.py",
        "layers/logits_processor.py",
    ]
    (flow,) = report.flows
    assert [(link.name, link.how) for link in flow.links] == [
        ("PictureForConditionalGeneration", "entry class"),
        ("PlainChildForCausalLM", "self.language_model of PictureForConditionalGeneration"),
        ("PlainForCausalLM", "inherited from"),
        ("PlainModel", "self.model of PlainForCausalLM"),
    ]
    assert flow.setter is None
    assert flow.breaks == (
        "PictureForConditionalGeneration has no setter, although PlainChildForCausalLM inside it has one: "
        "nothing can switch capture on",
    )
    assert [fact.kind for fact in report.facts] == ["captured", "layers", "dropped", "gated", "broken", "plugin"]
    broken = report.facts[-2].evidence[0]
    assert (str(broken.file), broken.line) == ("python/sglang/srt/models/picture.py", 7)


def test_a_wrapper_that_cannot_be_a_stage(fixture_tree: SourceTree) -> None:
    """The backbone takes what the stage before hands on, and the class that the server calls does not."""
    path = SRT_ROOT / "models/plain.py"
    text = fixture_tree.files[path].decode()
    staged = text.replace("    def forward(self, ", "    def forward(self, pp_proxy_tensors, ")
    assert staged != text
    tree = replace(fixture_tree, files={**fixture_tree.files, path: staged.encode()})
    picture, plain = (trace_tree(tree, [model]).flows[-1] for model in ("picture", "PlainForCausalLM"))
    assert picture.breaks[-1] == (
        "PictureForConditionalGeneration.forward takes no pp_proxy_tensors, although PlainModel.forward does: "
        "it cannot run in pipeline stages"
    )
    assert plain.breaks == ()


def test_a_wrapper_with_a_setter_is_whole(fixture_tree: SourceTree) -> None:
    report = trace_tree(fixture_tree, ["OuterInLayer"])
    assert "layers/communicator.py" in traced(report)
    outer = next(flow for flow in report.flows if flow.model == "OuterInLayer")
    assert outer.setter == "OuterInLayer.set_eagle3_layers_to_capture"
    assert outer.breaks == ()


def test_a_list_that_nobody_fills(fixture_tree: SourceTree) -> None:
    (flow,) = trace_tree(fixture_tree, ["hollow"]).flows
    assert "HollowModel makes a list of states and never fills it" in flow.breaks


def test_everything(fixture_tree: SourceTree) -> None:
    report = trace_tree(fixture_tree, everything=True)
    assert report.n_unknown == 0
    assert "models/picture.py" not in traced(report)
    assert {"models/fancy.py", "models/hollow.py", "layers/communicator.py"} <= set(traced(report))
    assert "PictureForConditionalGeneration" in {flow.model for flow in report.flows}


def test_one_file(fixture_tree: SourceTree) -> None:
    for name in ("python/sglang/srt/models/plain.py", "models/plain.py", "plain.py"):
        assert traced(trace_tree(fixture_tree, only=PurePosixPath(name))) == ["models/plain.py"]
    with pytest.raises(UsageError, match=r"no file missing\.py"):
        trace_tree(fixture_tree, only=PurePosixPath("missing.py"))


def test_an_unknown_model_names_its_neighbours(fixture_tree: SourceTree) -> None:
    with pytest.raises(UsageError, match="no model named 'plane'") as error:
        trace_tree(fixture_tree, ["plane"])
    assert error.value.hint is not None
    assert "plain" in error.value.hint


def test_a_tree_without_models(make_tree: MakeTree) -> None:
    with pytest.raises(SourceError, match="no model"):
        trace_tree(make_tree({SRT_ROOT / "server_args.py": b""}), ["plain"])


def test_layer_rules(fixture_tree: SourceTree) -> None:
    (rule,) = trace_tree(fixture_tree, ["plain"], num_layers=61).layer_rules
    assert (rule.offset, rule.default, rule.resolved) == (1, "[2, num_layers // 2, num_layers - 3]", (2, 30, 58))
    (unresolved,) = trace_tree(fixture_tree, ["plain"]).layer_rules
    assert unresolved.resolved is None
    (passed_on,) = trace_tree(fixture_tree, ["inlayer"], num_layers=8).layer_rules
    assert (passed_on.scope, passed_on.offset) == ("InLayerForCausalLM.set_eagle3_layers_to_capture", 1)
    assert passed_on.resolved == (2, 4, 5)


@pytest.mark.parametrize(
    ("source", "layers"),
    [
        ("[1, 2]", (1, 2)),
        ("[n_layers * 2 - 1]", (121,)),
        ("[self.config.num_hidden_layers // 3]", (20,)),
        ("[other - 1]", None),
        ("[num_layers // 0]", None),
        ("[True]", None),
        ("[f(2)]", None),
        ("range(3)", None),
    ],
)
def test_resolving_evaluates_arithmetic_only(source: str, layers: tuple[int, ...] | None) -> None:
    assert resolve_layers(source, 61) == layers


def test_hazards_with_their_evidence(fixture_tree: SourceTree) -> None:
    found = hazards(trace_tree(fixture_tree, ["fancy"]))
    assert set(found) == {
        "fused_all_reduce",
        "two_batch_overlap",
        "all_to_all_gather",
        "context_parallel",
        "first_layer",
    }
    fused = found["fused_all_reduce"]
    assert "at most 1024 tokens" in fused.trigger
    assert "FancyForCausalLM" in fused.trigger
    assert [item.file.name for item in fused.evidence] == ["fancy.py", "fancy.py", "communicator.py", "server_args.py"]
    assert found["two_batch_overlap"].evidence[0].scope == "FancyModel.forward"


@pytest.mark.parametrize(
    ("hazard", "old", "new"),
    [
        ("two_batch_overlap", "batch=batch, hidden_states", "states=aux_hidden_states, hidden_states"),
        ("two_batch_overlap", "layers=self.layers[last:], ", ""),
        ("all_to_all_gather", "= tensor_model_parallel_all_gather(", "= attention_group_all_gather("),
        (
            "context_parallel",
            "cp_all_gather_rows(hidden_states, batch)",
            "cp_all_gather_rows(hidden_states, aux_hidden_states)",
        ),
        (
            "fused_all_reduce",
            "hidden_states._sglang_needs_allreduce_fusion = True",
            "hidden_states = reduce(hidden_states)",
        ),
    ],
)
def test_a_hazard_goes_when_its_cause_goes(
    fixture_files: Files, make_tree: MakeTree, hazard: str, old: str, new: str
) -> None:
    before = hazards(trace_tree(make_tree(fixture_files), ["fancy"]))
    source = fixture_files[FANCY].decode()
    assert old in source
    fixture_files[FANCY] = source.replace(old, new).encode()
    after = hazards(trace_tree(make_tree(fixture_files), ["fancy"]))
    assert set(before) - set(after) == {hazard}


def test_a_flag_that_switches_fusion_off_is_named(fixture_files: Files, make_tree: MakeTree) -> None:
    flag = "--enforce-disable-flashinfer-allreduce-fusion"
    assert flag not in hazards(trace_tree(make_tree(fixture_files), ["fancy"]))["fused_all_reduce"].avoid
    named = {**fixture_files, ARGS: fixture_files[ARGS] + f'FLAG = "{flag}"\n'.encode()}
    assert hazards(trace_tree(make_tree(named), ["fancy"]))["fused_all_reduce"].avoid.startswith("no flag")
    fixture_files[ARGS] += (
        "    enforce_disable_flashinfer_allreduce_fusion: bool = False\n\n"
        "    def add_cli_args(self, parser):\n"
        f'        parser.add_argument("{flag}", action="store_true")\n'
    ).encode()
    assert hazards(trace_tree(make_tree(fixture_files), ["fancy"]))["fused_all_reduce"].avoid == flag


def test_a_plain_model_has_the_common_hazards_only(fixture_tree: SourceTree) -> None:
    found = hazards(trace_tree(fixture_tree, ["plain", "inlayer"]))
    assert set(found) == {"unpack_trap", "first_layer"}
    assert len(found["unpack_trap"].evidence) == 4


def test_steps_follow_the_surroundings(fixture_tree: SourceTree) -> None:
    report = trace_tree(fixture_tree, ["plain", "inlayer"])
    entries = [(trace, site) for trace in report.files for site in trace.capture_sites]
    steps = {(trace.file.name, site.role): step_of(trace, site) for trace, site in entries}
    parameters = {
        (trace.file.name, site.name): step_of(trace, site) for trace, site in entries if site.role == "parameter"
    }
    assert parameters == {
        ("logits_processor.py", "aux_hidden_states"): Step.CONSUMER,
        ("communicator.py", "captured_last_layer_outputs"): Step.CAPTURE,
        ("inlayer.py", "captured_last_layer_outputs"): Step.CAPTURE,
        ("inlayer.py", "layers_to_capture"): Step.SELECTION,
    }
    assert steps["model_runner.py", "flag_test"] is Step.SELECTION
    assert steps["plain.py", "flag_test"] is Step.HAND_OVER
