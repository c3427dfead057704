"""The ids that auxtap gives make SGLang's own setters choose just the layers that are armed."""

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from auxtap.checkout.repository import run_git
from auxtap.checkout.source import open_source
from auxtap.core.cache import CacheLayout
from auxtap.core.draft_ids import EAGLE3_SETTER, find_draft_ids
from auxtap.serving.engine_env import set_up_engine
from auxtap.serving.profile import CPU_ENVIRONMENT, CPU_SHIM
from auxtap.tests.verification.real_setter_script import N_BLOCKS
from auxtap.tracer.tracing import trace_setters

SCRIPT = Path(__file__).with_name("real_setter_script.py")
CLASSES = {
    "LlamaForCausalLM": "llama",
    "DeepseekV3ForCausalLM": "deepseek_v2",
    "KimiK25ForConditionalGeneration": "kimi_k25",
    "GptOssForCausalLM": "gpt_oss",
}
LAYERS = [(3, 31, 59), (2, 31, 59), (1, 31, 59), (59,), (2,), (1,), (1, 2), (5, 60)]
# What the setters of a release make of ids that look usual: the very difference that the rules are read for.
OF_2_30_58 = {"0.5.9": [3, 31, 59], "0.5.14": [2, 30, 58], "0.5.23": [2, 30, 58]}


@pytest.mark.engine
@pytest.mark.parametrize("release", sorted(OF_2_30_58))
def test_the_ids_make_the_real_setter_choose_the_layers(
    release: str, shared_cache: CacheLayout, tmp_path: Path
) -> None:
    source = open_source(f"pypi:{release}", shared_cache)
    setters = [each for each in trace_setters(source.tree) if CLASSES.get(each.model) == each.file.stem]
    asked, wanted = [["deepseek_v2", "DeepseekV3ForCausalLM", EAGLE3_SETTER, [2, 30, 58]]], [OF_2_30_58[release]]
    without = []
    for setter in setters:
        for layers in LAYERS:
            ids = find_draft_ids(layers, setter.rules, N_BLOCKS)
            if ids is None:
                without.append((setter.model, setter.name, layers))
            else:
                asked.append([setter.file.stem, setter.model, setter.name, list(ids)])
                wanted.append(list(layers))
    with tarfile.open(fileobj=io.BytesIO(run_git(source.repository, "archive", "--format=tar", source.commit))) as tar:
        tar.extractall(tmp_path, filter="data")
    done = subprocess.run(
        [set_up_engine(release, shared_cache).python, SCRIPT],
        input=json.dumps(asked), capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={**os.environ, **CPU_ENVIRONMENT, "PYTHONPATH": f"{CPU_SHIM}:{tmp_path / 'python'}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == wanted
    # Kimi-K2.5 has no setter in 0.5.9; from 0.5.13 on DeepSeek's can be given no list for block 1 alone.
    names = {(each.model, each.name) for each in setters}
    assert (("KimiK25ForConditionalGeneration", EAGLE3_SETTER) in names) is (release != "0.5.9")
    assert len(names) == {"0.5.9": 3}.get(release, 8)
    late = [name for name in ("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration") if release != "0.5.9"]
    assert sorted(without) == sorted((name, EAGLE3_SETTER, (1,)) for name in late)
