"""The pinned release: the golden file, an independent count of names, and nothing unknown."""

import io
import json
import re
import subprocess
import sys
import tokenize
from pathlib import PurePosixPath

import pytest

from auxtap.checkout.source import open_source
from auxtap.core.cache import CacheLayout
from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tests.tracer.conftest import FIXTURES, MODELS
from auxtap.tracer.tracing import trace_file, trace_tree

pytestmark = [pytest.mark.network, pytest.mark.slow]

DEEPSEEK = MODELS / "deepseek_v2.py"
# Written out again on purpose: the tracer's own list of names is what this count checks.
NAMES = re.compile(
    "aux_hidden_states?|capture_aux_hidden_states|captured_last_layer_outputs|layers_to_capture"
    r"|set_\w*layers_to_capture|AuxHiddenState(?:Packer|List)|eagle_use_aux_hidden_state|_is_layer_to_capture"
    "|eagle_aux_hidden_state_layer_ids|dspark_layers_to_capture|dspark_hidden_states|capture_gathered"
    "|expected_aux_hidden_states"
)
STAGE_NAMES = ("is_last_rank", "is_first_rank")


@pytest.fixture(scope="module")
def release(shared_cache: CacheLayout) -> SourceTree:
    return open_source("pypi:0.5.9", shared_cache).tree


def count_tokens(data: bytes) -> tuple[int, int]:
    """Count the NAME tokens of capture names and of stage names, imports included."""
    tokens = [t.string for t in tokenize.tokenize(io.BytesIO(data).readline) if t.type == tokenize.NAME]
    return sum(NAMES.fullmatch(t) is not None for t in tokens), sum(t in STAGE_NAMES for t in tokens)


def test_golden(release: SourceTree) -> None:
    golden = json.loads((FIXTURES / "golden/sglang-0.5.9-deepseek_v2.json").read_text())
    assert trace_file(DEEPSEEK, release.files[DEEPSEEK]).to_json("0.5.9") == golden


def test_golden_survives_a_shift_of_lines(release: SourceTree) -> None:
    """Every line number of the report moves along, those within notes too."""
    moved = trace_file(DEEPSEEK, b"# first\n" * 7 + release.files[DEEPSEEK]).to_json("0.5.9")
    text = json.dumps(json.loads((FIXTURES / "golden/sglang-0.5.9-deepseek_v2.json").read_text()))
    expected = re.sub(r'(?<="line": )\d+|(?<=\bline )\d+', lambda found: str(int(found[0]) + 7), text)
    assert moved == json.loads(expected)


def test_every_name_is_accounted_for(release: SourceTree) -> None:
    report = trace_tree(release, everything=True)
    seen: set[PurePosixPath] = set()
    for trace in report.files:
        seen.add(trace.file)
        n_capture, n_stage = count_tokens(release.files[trace.file])
        n_sites = sum(site.n_names for site in trace.capture_sites)
        assert (n_sites + trace.mentions.imports, len(trace.stage_branches)) == (n_capture, n_stage), trace.file
    anywhere = re.compile(rf"(?<!\w)(?:{NAMES.pattern}|{'|'.join(STAGE_NAMES)})(?!\w)".encode())
    rest = {path: data for path, data in release.files.items() if path.is_relative_to(SRT_ROOT) and path not in seen}
    assert [path for path, data in rest.items() if anywhere.search(data)] == []
    assert report.n_unknown == 0
    assert len(seen) == 69
    assert sum(len(trace.capture_sites) for trace in report.files) == 345
    assert sum(len(trace.stage_branches) for trace in report.files) == 247


def test_the_default_path(release: SourceTree) -> None:
    report = trace_tree(release, num_layers=61)
    assert {trace.file.name for trace in report.files} == {
        "deepseek_v2.py",
        "kimi_k25.py",
        "model_runner.py",
        "cuda_graph_runner.py",
        "logits_processor.py",
    }
    assert {hazard.name for hazard in report.hazards} == {
        "fused_all_reduce",
        "two_batch_overlap",
        "all_to_all_gather",
        "unscattered_backend",
        "scattered_dense_layers",
        "context_parallel",
        "unpack_trap",
        "first_layer",
        "prefix_cache",
        "chunked_prefill",
        "recorded_prefill",
        "retraction",
        "draft_worker",
        "deferred_experts",
        # Shown by the definitions of their arguments.
        "compiled_decode",
        "diffusion_decoding",
        "disaggregation",
        "embedding_server",
        "encoder_server",
        "scattered_attention_inputs",
        "split_prefill",
    }
    kimi = next(flow for flow in report.flows if flow.model == "KimiK25ForConditionalGeneration")
    assert kimi.setter is None
    assert [reason.partition(",")[0] for reason in kimi.breaks] == [
        "KimiK25ForConditionalGeneration has no setter",
        "KimiK25ForConditionalGeneration.forward takes no pp_proxy_tensors",
    ]
    (rule,) = report.layer_rules
    assert (rule.resolved, rule.draft_ids) == ((2, 30, 58), (1, 29, 57))


def test_command(release: SourceTree) -> None:
    command = [sys.executable, "-m", "auxtap.cli", "trace", "pypi:0.5.9", "--file", "models/deepseek_v2.py", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    golden = json.loads((FIXTURES / "golden/sglang-0.5.9-deepseek_v2.json").read_text())
    report = json.loads(result.stdout)
    assert report["files"] == [golden]
    assert report["schema"] == 1
    assert report["code"][golden["file"]]["2712"] == "aux_hidden_states = []"
