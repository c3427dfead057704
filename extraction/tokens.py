"""Turn conversations into tokens with the model's own tokenizer; the mask is exact or it is refused."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.extraction.samples import Message, TokenizedConversation

ASSISTANT = "assistant"
# What transformers looks for itself (tokenization_utils_base.py, apply_chat_template).
_GENERATION_BLOCK = re.compile(r"\{%-?\s*generation\s*-?%\}")


class ChatTokenizer:
    """A tokenizer with a chat template."""

    def __init__(self, tokenizer: Any) -> None:
        """Wrap a transformers tokenizer.

        Raises:
            UsageError: it has no chat template.
        """
        template = tokenizer.chat_template
        if not isinstance(template, str):
            raise UsageError(
                "the tokenizer has no single chat template",
                hint="give the folder of a chat model's tokenizer, or a dataset of input_ids",
            )
        self._tokenizer = tokenizer
        self._marks_generation = _GENERATION_BLOCK.search(template) is not None

    def tokenize(self, messages: Sequence[Message]) -> TokenizedConversation:
        """Apply the chat template; the mask is 1 on what the assistant says, its end-of-turn token included.

        Raises:
            ValueError: the template refuses the conversation, or rewrites earlier turns; names the turn.
        """
        if not any(message.role == ASSISTANT for message in messages):
            raise ValueError("messages have no turn of the assistant, so nothing to train on")
        if self._marks_generation:
            return self._tokenize_marked(messages)
        return self._tokenize_by_prefixes(messages)

    def _render(self, messages: Sequence[Message], turn: int, **options: Any) -> Any:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self._tokenizer.apply_chat_template(turns, tokenize=True, return_dict=True, **options)
        except Exception as error:
            # The template is a program of the model's author and raises what it likes.
            raise ValueError(f"the chat template refuses turn {turn} ({messages[-1].role}): {error}") from None

    def _tokenize_marked(self, messages: Sequence[Message]) -> TokenizedConversation:
        rendered = self._render(messages, len(messages), return_assistant_tokens_mask=True)
        ids, mask = list(rendered["input_ids"]), list(rendered["assistant_masks"])
        if not any(mask):
            raise ValueError("the chat template marks no token as the assistant's")
        return TokenizedConversation(ids, mask)

    def _tokenize_by_prefixes(self, messages: Sequence[Message]) -> TokenizedConversation:
        """Mask what a turn of the assistant adds to the conversation before it, token by token."""
        ids = list(self._render(messages, len(messages))["input_ids"])
        mask = [0] * len(ids)
        for index, message in enumerate(messages):
            if message.role != ASSISTANT:
                continue
            turn = index + 1
            before = list(self._render(messages[:index], turn, add_generation_prompt=True)["input_ids"])
            after = list(self._render(messages[:turn], turn)["input_ids"])
            if after[: len(before)] != before or ids[: len(after)] != after:
                raise ValueError(
                    f"the chat template rewrites what stands before or in turn {turn} (assistant), "
                    "so there is no exact mask"
                )
            end = len(before) + self._spoken(after[len(before) :])
            mask[len(before) : end] = [1] * (end - len(before))
        return TokenizedConversation(ids, mask)

    def _spoken(self, tokens: list[int]) -> int:
        """Return how many of a turn's tokens count: up to its end token, not the template's blanks behind that."""
        special = set(self._tokenizer.all_special_ids)
        for position in range(len(tokens) - 1, -1, -1):
            if tokens[position] in special:
                rest = self._tokenizer.decode(tokens[position + 1 :])
                return position + 1 if not rest.strip() else len(tokens)
        return len(tokens)


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> ChatTokenizer:
    """Load a tokenizer from local files; nothing is downloaded.

    Raises:
        UsageError: transformers is not installed, or the tokenizer has no chat template.
        ExtractionError: the folder holds no usable tokenizer.
    """
    if not folder.is_dir():
        raise ExtractionError(f"tokenizer folder {folder} is not there", hint="--tokenizer takes a local folder")
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Without torch transformers warns that models are not to be had; none is wanted.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise UsageError(
            "messages need transformers, which is not installed beside auxtap",
            hint="pip install 'auxtap[tokenizer]'",
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:
        # Which exceptions come depends on the tokenizer's class; the first line says what is wrong.
        first_line = str(error).strip().partition("\n")[0]
        raise ExtractionError(
            f"tokenizer in {folder} cannot be loaded: {first_line}",
            hint="tokenizers with code of their own need --trust-remote-code",
        ) from None
    return ChatTokenizer(tokenizer)
