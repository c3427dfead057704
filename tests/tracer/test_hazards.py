"""Each hazard goes when the real source is edited so that its cause goes, and comes back with it."""

import atexit
import functools
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import pytest

from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tests.tracer.releases import release_tree
from auxtap.tracer.report.trace_report import Hazard
from auxtap.tracer.source.trace_cache import TraceCache
from auxtap.tracer.tracing import trace_tree

pytestmark = [pytest.mark.network, pytest.mark.slow]
# Files that an edit leaves alone are traced once for all tests of a run.
_KEPT = Path(tempfile.mkdtemp(prefix="auxtap-test-traces-"))
atexit.register(shutil.rmtree, _KEPT, ignore_errors=True)
KEPT = TraceCache(_KEPT)


@dataclass(frozen=True)
class Edit:
    """One hazard of one release, and the edit that takes away what causes it."""

    hazard: str
    release: str
    model: str
    file: str
    old: str
    new: str


EDITS = (
    Edit(
        "fused_all_reduce",
        "0.5.9",
        "deepseek_v2",
        "models/deepseek_v2.py",
        r"hidden_states\._sglang_needs_allreduce_fusion = True",
        "hidden_states = tensor_model_parallel_all_reduce(hidden_states)",
    ),
    Edit(
        "fused_all_reduce",
        "0.5.17",
        "gpt_oss",
        "models/gpt_oss.py",
        r"hidden_states\._sglang_needs_allreduce_fusion = True",
        "hidden_states = tensor_model_parallel_all_reduce(hidden_states)",
    ),
    Edit(
        "two_batch_overlap",
        "0.5.9",
        "qwen2_moe",
        "models/qwen2_moe.py",
        r"model_forward_maybe_tbo\(",
        "model_forward_maybe_tbo(captured_last_layer_outputs=aux_hidden_states, ",
    ),
    Edit(
        "two_batch_overlap",
        "0.5.23",
        "deepseek_v2",
        "models/deepseek_v2.py",
        r"if normal_end_layer != self\.end_layer:",
        "if normal_end_layer != self.end_layer and not self.layers_to_capture:",
    ),
    Edit(
        "all_to_all_gather",
        "0.5.9",
        "deepseek_v2",
        "models/deepseek_v2.py",
        r"aux_hidden_state = tensor_model_parallel_all_gather\(",
        "aux_hidden_state = attention_group_all_gather(",
    ),
    Edit(
        "unscattered_backend",
        "0.5.9",
        "deepseek_v2",
        "models/deepseek_v2.py",
        r"if get_moe_a2a_backend\(\)\.is_deepep\(\) or get_moe_a2a_backend\(\)\.is_mooncake\(\):\n"
        r"( +)self\.enable_a2a_moe",
        "if backend.is_deepep() or backend.is_mooncake() or backend.is_mori() or backend.is_ascend_fuseep() "
        "or backend.is_flashinfer():\n            self.enable_a2a_moe",
    ),
    Edit(
        "scattered_dense_layers",
        "0.5.9",
        "deepseek_v2",
        "models/deepseek_v2.py",
        r"if self\.enable_a2a_moe and i > self\.first_k_dense_replace:",
        "if self.enable_a2a_moe:",
    ),
    Edit(
        "context_parallel",
        "0.5.9",
        "deepseek_v2",
        "models/deepseek_v2.py",
        r"hidden_states = cp_all_gather_rerange_output\(\n( +)hidden_states,",
        "hidden_states, aux_hidden_states = cp_all_gather_rerange_output(\n                hidden_states, "
        "aux_hidden_states,",
    ),
    Edit(
        "unpack_trap",
        "0.5.9",
        "llama",
        "models/llama.py",
        r"if len\(aux_hidden_states\) == 0:\n +return hidden_states\n",
        "",
    ),
    Edit(
        "first_layer",
        "0.5.9",
        "llama",
        "models/llama.py",
        r"aux_hidden_states\.append\(hidden_states \+ residual\)",
        "aux_hidden_states.append(add_residual(hidden_states, residual))",
    ),
    Edit(
        "reused_storage",
        "0.5.23",
        "gemma3_causal",
        "models/gemma3_causal.py",
        r"aux_hidden_states\.append\(hidden_states\)",
        "aux_hidden_states.append(hidden_states.clone())",
    ),
    Edit(
        "reused_storage",
        "0.5.14",
        "gemma4_causal",
        "models/gemma4_causal.py",
        r"residual = hidden_states\n",
        "residual = hidden_states.clone()\n",
    ),
    Edit(
        "dropped_residual",
        "0.5.23",
        "gemma3_causal",
        "models/gemma3_causal.py",
        r"aux_hidden_states\.append\(hidden_states\)",
        "aux_hidden_states.append(hidden_states + residual)",
    ),
    Edit(
        "scaled_final_state",
        "0.5.9",
        "minicpm",
        "models/minicpm.py",
        r"hidden_states = hidden_states / self\.scale_width",
        "scale = self.scale_width",
    ),
    Edit(
        "scaled_final_state",
        "0.5.23",
        "inkling",
        "models/inkling.py",
        r"else hidden_states / mup_width_multiplier",
        "else hidden_states",
    ),
    Edit(
        "gather_before_logits",
        "0.5.23",
        "llama",
        "layers/logits_processor.py",
        r"hidden_states, hidden_states_before_norm = layernorm_sp\.maybe_exit_gather\(\n",
        "hidden_states, hidden_states_before_norm = layernorm_sp.maybe_exit_gather(aux_hidden_states,\n",
    ),
    Edit("prefix_cache", "0.5.9", "llama", "managers/", r"\.match_prefix\(", ".match_nothing("),
    Edit(
        "chunked_prefill",
        "0.5.9",
        "llama",
        "managers/schedule_policy.py",
        r"self\.new_chunked_req = req",
        "self.new_chunked_req = None",
    ),
    Edit(
        "recorded_prefill",
        "0.5.9",
        "llama",
        "model_executor/model_runner.py",
        r"PiecewiseCudaGraphRunner\(self\)",
        "None",
    ),
    Edit(
        "recorded_prefill",
        "0.5.23",
        "llama",
        "model_executor/model_runner_components/cuda_graph_setup.py",
        r"PrefillCudaGraphRunner\(model_runner\)",
        "None",
    ),
    Edit(
        "deferred_experts",
        "0.5.9",
        "llama",
        "layers/moe/kt_ep_wrapper.py",
        r"max_deferred_experts_per_token=",
        "max_experts_per_token=",
    ),
    Edit("retraction", "0.5.9", "llama", "managers/scheduler.py", r"batch\.retract_decode\(", "batch.wait_for_room("),
    Edit(
        "draft_worker",
        "0.5.23",
        "llama",
        "managers/scheduler.py",
        r"self\.draft_worker = DraftWorkerClass\(\*\*draft_worker_kwargs\)",
        "self.draft_worker = None",
    ),
)


@functools.cache
def before_edit(release: str, model: str) -> dict[str, Hazard]:
    return hazards(release_tree(release), Edit("", release, model, "", "", ""))


def hazards(tree: SourceTree, edit: Edit) -> dict[str, Hazard]:
    # Files are all looked at where the hazard may stand in any of them.
    everything = edit.model == "minicpm"
    report = trace_tree(tree, [edit.model], everything=everything, cache=KEPT)
    return {hazard.name: hazard for hazard in report.hazards}


def edited(tree: SourceTree, edit: Edit, old: str, new: str) -> tuple[SourceTree, int]:
    files, n_edits = dict(tree.files), 0
    for path, data in tree.files.items():
        if path == SRT_ROOT / edit.file or ((not edit.file or edit.file.endswith("/")) and _below(path, edit.file)):
            text, n_found = re.subn(old, new, data.decode())
            if n_found:
                files[path], n_edits = text.encode(), n_edits + n_found
    return replace(tree, files=MappingProxyType(files)), n_edits


def _below(path: PurePosixPath, folder: str) -> bool:
    return path.is_relative_to(SRT_ROOT / folder)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit.hazard}-{edit.release}")
def test_a_hazard_goes_with_its_cause_and_comes_back(edit: Edit) -> None:
    tree = release_tree(edit.release)
    before = before_edit(edit.release, edit.model)
    assert before[edit.hazard].evidence
    cured, n_edits = edited(tree, edit, edit.old, edit.new)
    assert n_edits
    gone = hazards(cured, edit).get(edit.hazard)
    if edit.hazard == "scaled_final_state":
        # Other models of the release have it too.
        files = set() if gone is None else {str(item.file) for item in gone.evidence}
        assert str(SRT_ROOT / edit.file) in {str(item.file) for item in before[edit.hazard].evidence}
        assert str(SRT_ROOT / edit.file) not in files
    else:
        assert gone is None
    if edit.model != "minicpm":
        assert hazards(replace(cured, files=tree.files), edit) == before


def test_a_byte_order_mark_is_reported() -> None:
    tree = release_tree("0.4.5")
    (hazard,) = (item for item in trace_tree(tree, everything=True).hazards if item.name == "byte_order_mark")
    path = hazard.evidence[0].file
    files = MappingProxyType({**tree.files, path: tree.files[path].removeprefix(b"\xef\xbb\xbf")})
    cured = trace_tree(replace(tree, files=files), everything=True)
    assert "byte_order_mark" not in {item.name for item in cured.hazards}


def test_a_mention_is_no_evidence() -> None:
    """Names of causes in comments and strings bring no hazard about."""
    edit = Edit("fused_all_reduce", "0.5.9", "llama", "models/llama.py", r"\Z", "")
    tree = release_tree("0.5.9")
    mention = (
        "\n# hidden_states._sglang_needs_allreduce_fusion = True\nTEXT = '_sglang_needs_allreduce_fusion = True'\n"
    )
    path = SRT_ROOT / "models/llama.py"
    mentioned = replace(tree, files=MappingProxyType({**tree.files, path: tree.files[path] + mention.encode()}))
    assert "fused_all_reduce" not in hazards(tree, edit)
    assert set(hazards(mentioned, edit)) == set(hazards(tree, edit))


@pytest.mark.parametrize(
    ("release", "present", "absent"),
    [
        ("0.5.9", {"all_to_all_gather", "unscattered_backend", "fused_all_reduce"}, {"gather_before_logits"}),
        ("0.5.14", {"two_batch_overlap", "context_parallel"}, {"all_to_all_gather", "fused_all_reduce"}),
        ("0.5.23", {"two_batch_overlap", "gather_before_logits"}, {"context_parallel", "fused_all_reduce"}),
    ],
)
def test_a_release_that_is_cured_does_not_report(release: str, present: set[str], absent: set[str]) -> None:
    found = {hazard.name for hazard in trace_tree(release_tree(release), ["deepseek_v2"]).hazards}
    assert present <= found
    assert not absent & found


@pytest.mark.parametrize("model", ["lfm2", "muse_glimmer", "beam", "nemotron_h"])
def test_a_state_without_a_copy_is_no_evidence(model: str) -> None:
    """These models keep states as they are too, and no layer of theirs was seen to write into them."""
    assert "reused_storage" not in before_edit("0.5.23", model)


def test_a_norm_that_adds_in_place_is_the_evidence() -> None:
    lines = before_edit("0.5.14", "gemma4_causal")["reused_storage"].evidence
    assert [(item.file.name, item.scope) for item in lines] == [
        ("gemma4_causal.py", "Gemma4TextModel.forward"),
        ("gemma4_causal.py", "Gemma4DecoderLayer.forward"),
        ("layernorm.py", "RMSNorm.forward_cuda"),
    ]


def test_defaults_and_flags_are_those_of_the_release() -> None:
    edit = Edit("", "0.5.9", "deepseek_v2", "", "", "")
    old = hazards(release_tree("0.5.9"), edit)
    assert old["fused_all_reduce"].default_on
    assert old["fused_all_reduce"].hardware == "H100/H200 (SM90) or B200 (SM100)"
    assert old["fused_all_reduce"].avoid.startswith("no flag in this release")
    assert (old["recorded_prefill"].default_on, old["recorded_prefill"].hardware) == (False, "CUDA")
    assert old["prefix_cache"].default_on
    later = hazards(release_tree("0.5.10"), edit)
    assert later["fused_all_reduce"].avoid == "--enforce-disable-flashinfer-allreduce-fusion"
    assert (later["recorded_prefill"].default_on, later["recorded_prefill"].avoid) == (
        True,
        "--disable-piecewise-cuda-graph",
    )
    newest = hazards(release_tree("0.5.23"), edit)
    assert newest["recorded_prefill"].avoid == "--disable-prefill-cuda-graph"
