"""Tiny models: made once, whole or not at all, with a tokenizer that a data set can use."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from auxtap.core.cache import CacheLayout
from auxtap.core.errors import UsageError
from auxtap.serving.engine_env import EngineEnvironment
from auxtap.serving.profile import model_depth
from auxtap.verification.engine.tiny_models import END_ID, TINY_LAYERS, TINY_MODELS, make_tiny_models

pytestmark = pytest.mark.engine


def test_models_are_made_once_and_the_same_bytes_again(
    tiny: Mapping[str, Path], engine: EngineEnvironment, shared_cache: CacheLayout, tmp_path: Path
) -> None:
    said: list[str] = []
    again = make_tiny_models(TINY_MODELS, engine, shared_cache, said.append)
    assert {model.name: model.path for model in again} == tiny
    assert said == []
    fresh = CacheLayout(tmp_path)
    (fresh.models / ".making-0000").mkdir(parents=True)
    for model in make_tiny_models(TINY_MODELS, engine, fresh, said.append):
        for path in sorted(model.path.iterdir()):
            assert path.read_bytes() == (tiny[model.name] / path.name).read_bytes(), path.name
        assert model_depth(str(model.path)) == 8
    assert said == [f"making tiny models: {', '.join(TINY_MODELS)}"]
    assert {path.name for path in fresh.models.iterdir()} == {".lock"} | {path.name for path in tiny.values()}


def test_layers_lie_in_both_halves_of_a_pipeline() -> None:
    assert min(TINY_LAYERS) < 4 <= max(TINY_LAYERS) < 8


def test_kimi_wraps_its_weights(tiny: Mapping[str, Path]) -> None:
    config = json.loads((tiny["kimi_k25"] / "config.json").read_bytes())
    assert config["architectures"] == ["KimiK25ForConditionalGeneration"]
    assert config["text_config"]["architectures"] == ["DeepseekV3ForCausalLM"]
    data = (tiny["kimi_k25"] / "model.safetensors").read_bytes()
    names = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert all(name.startswith("language_model.") for name in names if name != "__metadata__")


@pytest.mark.parametrize("name", TINY_MODELS)
def test_token_ids_are_bytes_and_the_template_marks_the_assistant(tiny: Mapping[str, Path], name: str) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny[name])
    text = "Grüße,\n\tworld  \x00 €"
    assert tokenizer(text).input_ids == list(text.encode())
    encoded = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}],
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert encoded["assistant_masks"] == [0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert tokenizer.decode(encoded["input_ids"]) == "<|begin|><|user|>hi<|end|><|assistant|>yo<|end|>"


@pytest.mark.parametrize("name", TINY_MODELS)
def test_answers_end_with_one_token(tiny: Mapping[str, Path], name: str) -> None:
    assert json.loads((tiny[name] / "config.json").read_bytes())["eos_token_id"] == END_ID


def test_an_unknown_model_says_how_to_add_one(engine: EngineEnvironment, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no tiny model 'gpt9'") as caught:
        make_tiny_models(["gpt9"], engine, CacheLayout(tmp_path))
    assert "one function" in str(caught.value.hint)
