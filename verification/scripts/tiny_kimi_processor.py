"""The processor of a tiny Kimi-K2.5: text only. It travels with the model, because SGLang 0.5.14 on asks for one."""

from types import SimpleNamespace
from typing import Any

from transformers import AutoTokenizer, ProcessorMixin

# What SGLang reads of a media processor while it starts; no picture is ever processed.
MEDIA = {
    "patch_size": 4,
    "merge_kernel_size": [2, 2],
    "in_patch_limit": 64,
    "patch_limit_on_one_side": 8,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "fixed_output_tokens": None,
}


class TinyKimiProcessor(ProcessorMixin):  # type: ignore[misc]
    """A tokenizer with the attributes of a media processor."""

    attributes = ["tokenizer"]  # noqa: RUF012 - transformers reads a list
    tokenizer_class = "AutoTokenizer"

    def __init__(self, tokenizer: Any = None, **unused: Any) -> None:
        self.tokenizer = tokenizer
        self.media_processor = SimpleNamespace(media_proc_cfg=MEDIA, media_tokens_calculator=lambda _: 1)
        self.image_processor = self.media_processor

    @classmethod
    def from_pretrained(cls, path: str, *unused: Any, **more: Any) -> "TinyKimiProcessor":
        """Load the tokenizer beside the model."""
        return cls(AutoTokenizer.from_pretrained(path))
