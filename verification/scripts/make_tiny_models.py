"""Make tiny random-weight models; run by the Python of an engine environment, never imported by auxtap.

Usage: make_tiny_models.py --out DIR NAME...   (writes DIR/NAME)

A new architecture is one function decorated with `@tiny("name")` that saves a model folder. The models have 8
blocks, hidden size 64 and float32 weights whose scale keeps every block's contribution visible: a swapped layer, a
missing residual or a missing norm changes the states by far more than the tolerance of the comparison.
"""

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

BLOCKS, HIDDEN, VOCABULARY, POSITIONS = 8, 64, 256, 2048
HEAD, WINDOW = HIDDEN // 4, 16
SEED = 20240611
WEIGHTS = "model.safetensors"
PROCESSOR = "tiny_kimi_processor.py"
# The transformers of the releases that want a processor (SGLang 0.5.11 on).
PROCESSOR_SINCE = (5, 6)

# Token id = byte of UTF-8; the special tokens take ids of bytes that never occur in UTF-8.
SPECIALS = {
    "<|pad|>": 0xF5,
    "<|begin|>": 0xF6,
    "<|end|>": 0xF7,
    "<|system|>": 0xF8,
    "<|user|>": 0xF9,
    "<|assistant|>": 0xFA,
    "<|media|>": 0xFF,
}
UNUSED = {0xC0, 0xC1, 0xFB, 0xFC, 0xFD, 0xFE}
PAD, BEGIN, END, MEDIA = (SPECIALS[name] for name in ("<|pad|>", "<|begin|>", "<|end|>", "<|media|>"))
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

Maker = Callable[[Path], None]
MAKERS: dict[str, Maker] = {}


def tiny(name: str) -> Callable[[Maker], Maker]:
    """Register a function that saves the tiny model called `name` into a folder."""

    def register(maker: Maker) -> Maker:
        MAKERS[name] = maker
        return maker

    return register


def common_sizes() -> dict[str, Any]:
    """Return what every configuration shares."""
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": 4,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }


def grouped_sizes() -> dict[str, Any]:
    """Return what every configuration with grouped attention heads shares."""
    return {**common_sizes(), "num_key_value_heads": 2}


def deepseek_v3_sizes() -> dict[str, Any]:
    """Return a DeepSeek-V3 configuration: MLA, one dense block, then experts in groups with a shared one."""
    return {
        **common_sizes(),
        "num_key_value_heads": 4,
        "q_lora_rank": 48,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "rope_scaling": {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": POSITIONS // 4,
        },
    }


# Keys that SGLang reads from config.json and transformers' configurations do not write.
DEEPSEEK_V3_SGLANG_KEYS = {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
GPT_OSS_SGLANG_KEYS = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}


@tiny("llama")
def make_llama(folder: Path) -> None:
    """Save a Llama: grouped attention heads, RMSNorm, gated MLP."""
    randomized(LlamaForCausalLM(LlamaConfig(**grouped_sizes(), head_dim=HEAD))).save_pretrained(folder)


@tiny("mixtral")
def make_mixtral(folder: Path) -> None:
    """Save a Mixtral: experts in every block, and no capture code in SGLang."""
    sizes = {**common_sizes(), "num_key_value_heads": 2, "head_dim": HIDDEN // 4}
    config = MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)
    randomized(MixtralForCausalLM(config)).save_pretrained(folder)


@tiny("starcoder2")
def make_starcoder2(folder: Path) -> None:
    """Save a Starcoder2: layer norms with biases, a block that returns the whole stream, no capture code in SGLang."""
    config = Starcoder2Config(**common_sizes(), num_key_value_heads=2, use_bias=True)
    randomized(Starcoder2ForCausalLM(config)).save_pretrained(folder)


@tiny("qwen2")
def make_qwen2(folder: Path) -> None:
    """Save a Qwen2: as Llama, with biases on query, key and value."""
    randomized(Qwen2ForCausalLM(Qwen2Config(**grouped_sizes()))).save_pretrained(folder)


@tiny("qwen3")
def make_qwen3(folder: Path) -> None:
    """Save a Qwen3: as Llama, with a norm on each head's query and key."""
    randomized(Qwen3ForCausalLM(Qwen3Config(**grouped_sizes(), head_dim=HEAD))).save_pretrained(folder)


@tiny("qwen3_moe")
def make_qwen3_moe(folder: Path) -> None:
    """Save a Qwen3-MoE: every MLP is experts, their weights renormalised, none of them shared."""
    config = Qwen3MoeConfig(
        **grouped_sizes(),
        head_dim=HEAD,
        moe_intermediate_size=HIDDEN // 2,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    )
    randomized(Qwen3MoeForCausalLM(config)).save_pretrained(folder)


@tiny("gpt_oss")
def make_gpt_oss(folder: Path) -> None:
    """Save a GPT-OSS: attention sinks, every second block with a sliding window, experts with biases and a clamp."""
    config = GptOssConfig(
        **grouped_sizes(), head_dim=HEAD, num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW
    )
    model = randomized(GptOssForCausalLM(config))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            # SGLang keeps sinks in bfloat16 whatever the model's dtype (models/gpt_oss.py, GptOssAttention).
            if name.endswith("sinks"):
                tensor.copy_(tensor.bfloat16().float())
    model.save_pretrained(folder)
    add_to_config(folder, GPT_OSS_SGLANG_KEYS)


@tiny("deepseek_v3")
def make_deepseek_v3(folder: Path) -> None:
    """Save a DeepSeek-V3: MLA, a dense block, then experts in groups with a shared one."""
    randomized(DeepseekV3ForCausalLM(DeepseekV3Config(**deepseek_v3_sizes()))).save_pretrained(folder)
    add_to_config(folder, DEEPSEEK_V3_SGLANG_KEYS)


@tiny("kimi_k25")
def make_kimi_k25(folder: Path) -> None:
    """Save a Kimi-K2.5: a DeepSeek-V3 text model under `language_model.` within a multimodal wrapper."""
    model = randomized(DeepseekV3ForCausalLM(DeepseekV3Config(**deepseek_v3_sizes())))
    text_config = {**model.config.to_dict(), **DEEPSEEK_V3_SGLANG_KEYS, "architectures": ["DeepseekV3ForCausalLM"]}
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "float32",
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "media_placeholder_token_id": MEDIA,
        "tie_word_embeddings": False,
        "text_config": text_config,
        "vision_config": kimi_k25_vision_config(),
    }
    # Saved and read back: transformers 5 joins the experts in memory and takes them apart again in the file.
    model.save_pretrained(folder)
    weights = load_file(folder / WEIGHTS)
    weights = {f"language_model.{name}": tensor for name, tensor in weights.items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    write_json(folder / "config.json", config)
    if tuple(map(int, transformers.__version__.split(".")[:2])) >= PROCESSOR_SINCE:
        add_processor(folder)


def add_processor(folder: Path) -> None:
    """Put the processor beside a model that SGLang 0.5.14 on does not load without one."""
    shutil.copy(Path(__file__).with_name(PROCESSOR), folder / PROCESSOR)
    name = "TinyKimiProcessor"
    reference = {"processor_class": name, "auto_map": {"AutoProcessor": f"{Path(PROCESSOR).stem}.{name}"}}
    for file in ("processor_config.json", "preprocessor_config.json"):
        write_json(folder / file, reference)


def kimi_k25_vision_config() -> dict[str, Any]:
    """Return a vision tower of one tiny block; it has no weights, because only text is served.

    SGLang 0.5.9 reads the `vt_*` names (`models/kimi_k25.py`).
    """
    width = HIDDEN // 2
    return {
        "patch_size": 4,
        "merge_kernel_size": [2, 2],
        "init_pos_emb_height": 8,
        "init_pos_emb_width": 8,
        "init_pos_emb_time": 4,
        "hidden_size": width,
        "intermediate_size": width,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "mm_hidden_size": width,
        "text_hidden_size": HIDDEN,
        "vt_hidden_size": width,
        "vt_intermediate_size": width,
        "vt_num_attention_heads": 2,
        "vt_num_hidden_layers": 1,
    }


def randomized(model: PreTrainedModel) -> PreTrainedModel:
    """Fill every parameter and router bias from one seeded generator, in the order of the model."""
    generator = torch.Generator().manual_seed(SEED)

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator)

    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.dim() >= 2:
                tensor.copy_(0.15 * noise(tensor))
            elif "norm" in name:
                tensor.copy_(1 + 0.2 * noise(tensor))
            else:
                tensor.copy_(0.1 * noise(tensor))
        for name, tensor in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                tensor.copy_(0.1 * noise(tensor))
    return model.to(torch.float32).eval()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose ids are UTF-8 bytes, with a chat template that marks the assistant's tokens."""
    vocabulary = {}
    for code, character in sorted(byte_characters().items()):
        if code not in SPECIALS.values() and code not in UNUSED:
            vocabulary[character] = code
    vocabulary.update({f"<|unused-{code}|>": code for code in UNUSED})
    vocabulary.update(SPECIALS)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|begin|>",  # noqa: S106
        eos_token="<|end|>",  # noqa: S106
        pad_token="<|pad|>",  # noqa: S106
        model_max_length=POSITIONS,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def byte_characters() -> dict[int, str]:
    """Return the character that byte-level tokenizers write for each byte: itself where printable, else above 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters = {code: chr(code) for code in printable}
    others = (code for code in range(256) if code not in characters)
    characters.update({code: chr(256 + position) for position, code in enumerate(others)})
    return characters


def add_to_config(folder: Path, keys: dict[str, Any]) -> None:
    """Put more keys into a model's `config.json`."""
    path = folder / "config.json"
    write_json(path, {**json.loads(path.read_text()), **keys})


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n")


def main() -> None:
    """Make the models that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("names", nargs="+", choices=sorted(MAKERS))
    arguments = parser.parse_args()
    tokenizer = byte_tokenizer()
    for name in arguments.names:
        folder = arguments.out / name
        folder.mkdir(parents=True)
        MAKERS[name](folder)
        tokenizer.save_pretrained(folder)
        print(name, flush=True)


if __name__ == "__main__":
    main()
