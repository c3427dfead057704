"""Masks through real chat templates of transformers: exact to the token, or refused with the turn."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.extraction.samples import Conversation, Message
from auxtap.extraction.tokens import ChatTokenizer, load_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}"
    "{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content[:2] }}{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REFUSING = "{% if messages[0].role != 'user' %}{{ raise_exception('the user begins') }}{% endif %}" + CHATML
NO_END = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)

TALK = (
    Message("system", "be short"),
    Message("user", "héllo 🙂"),
    Message("assistant", "hi there 🙂"),
    Message("user", "bye"),
    Message("assistant", "ciao"),
)


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str | None], Path]:
    """Save a byte-level tokenizer of 256 + 2 tokens with a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def save_tokenizer(template: str | None) -> Path:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.decoder = decoders.ByteLevel()
        core.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=core, eos_token="<|im_end|>", additional_special_tokens=["<|im_start|>"]
        )
        if template is not None:
            tokenizer.chat_template = template
        tokenizer.save_pretrained(tmp_path / "tok")
        return tmp_path / "tok"

    return save_tokenizer


def trained_text(tokenizer: ChatTokenizer, messages: Sequence[Message]) -> list[str]:
    """Decode each run of trained tokens."""
    tokens = tokenizer.tokenize(Conversation(tuple(messages)))
    assert len(tokens.input_ids) == len(tokens.loss_mask)
    runs: list[list[int]] = []
    before = 0
    for token, mask in zip(tokens.input_ids, tokens.loss_mask, strict=True):
        if mask:
            runs = runs if before else [*runs, []]
            runs[-1].append(token)
        before = mask
    inner: Any = tokenizer._tokenizer
    return [inner.decode(run) for run in runs]


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_the_mask_is_what_the_assistant_says(save: Callable[[str | None], Path], template: str) -> None:
    tokenizer = load_tokenizer(save(template))
    assert trained_text(tokenizer, TALK) == ["hi there 🙂<|im_end|>", "ciao<|im_end|>"]
    assert trained_text(tokenizer, (*TALK, Message("user", "more"))) == ["hi there 🙂<|im_end|>", "ciao<|im_end|>"]
    empty = (Message("user", "x"), Message("assistant", ""))
    assert trained_text(tokenizer, empty) == ["<|im_end|>"]


def test_marked_and_plain_templates_agree(save: Callable[[str | None], Path]) -> None:
    marked = load_tokenizer(save(MARKED)).tokenize(Conversation(TALK))
    plain = load_tokenizer(save(CHATML)).tokenize(Conversation(TALK))
    assert list(marked.input_ids) == list(plain.input_ids) and list(marked.loss_mask) == list(plain.loss_mask)


def test_a_template_without_an_end_token(save: Callable[[str | None], Path]) -> None:
    assert trained_text(load_tokenizer(save(NO_END)), TALK) == ["hi there 🙂", "ciao"]


def test_a_template_that_rewrites_history_is_refused_with_the_turn(save: Callable[[str | None], Path]) -> None:
    tokenizer = load_tokenizer(save(FORGETFUL))
    with pytest.raises(ValueError, match=r"turn 3 \(assistant\)"):
        tokenizer.tokenize(Conversation(TALK))
    assert trained_text(tokenizer, TALK[:3]) == ["hi there 🙂<|im_end|>"]


def test_a_template_that_refuses_is_quoted(save: Callable[[str | None], Path]) -> None:
    with pytest.raises(ValueError, match=r"refuses turn 5 \(assistant\): the user begins"):
        load_tokenizer(save(REFUSING)).tokenize(Conversation(TALK))


def test_nothing_to_train_on_is_refused(save: Callable[[str | None], Path]) -> None:
    for template in (CHATML, MARKED):
        with pytest.raises(ValueError, match="nothing to train on"):
            load_tokenizer(save(template)).tokenize(Conversation(TALK[:2]))


def test_tokenizers_that_cannot_be_used(save: Callable[[str | None], Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no chat template"):
        load_tokenizer(save(None))
    with pytest.raises(ExtractionError, match="is not there"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExtractionError, match="cannot be loaded"):
        load_tokenizer(tmp_path / "empty")
