"""Make a Llama whose arithmetic outweighs the rest of a forward; run by the Python of an engine environment.

Usage: make_wide_model.py FOLDER   (4 blocks, hidden size 1024, random float32 weights)
"""

import sys
from pathlib import Path

import torch
from make_tiny_models import byte_tokenizer  # type: ignore[import-not-found]
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    """Save the model."""
    folder = Path(sys.argv[1])
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8,
        vocab_size=256, max_position_embeddings=4096, tie_word_embeddings=False, dtype="float32",
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


if __name__ == "__main__":
    main()
