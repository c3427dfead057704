"""Masks through real chat templates of transformers: exact to the token, or refused with the turn."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.extraction.datasets.reading import Conversation, Message
from auxtap.extraction.datasets.tokenizer import ChatTokenizer, load_tokenizer

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


# A tokenizer as models bring along: in Python, without offsets, with its own way to apply the template.
OWN_CODE = """
from transformers import PreTrainedTokenizer

class OwnTokenizer(PreTrainedTokenizer):
    def __init__(self, **options):
        super().__init__(**options)

    @property
    def vocab_size(self):
        return 256

    def get_vocab(self):
        return {**{chr(256 + byte): byte for byte in range(256)}, **self.added_tokens_encoder}

    def _tokenize(self, text, **options):
        return [chr(256 + byte) for byte in text.encode()]

    def _convert_token_to_id(self, token):
        return ord(token) - 256 if len(token) == 1 else None

    def _convert_id_to_token(self, index):
        return chr(256 + index)

    def convert_tokens_to_string(self, tokens):
        parts = [bytes([ord(token) - 256]) if len(token) == 1 else token.encode() for token in tokens]
        return b"".join(parts).decode(errors="replace")

    def save_vocabulary(self, folder, filename_prefix=None):
        return ()

    def apply_chat_template(self, conversation, tools=None, tokenize=False, add_generation_prompt=True, **options):
        text = "".join(f"<|im_start|>{m['role']}:{m['content']}<|im_end|>\\n" for m in conversation)
        text += "<|im_start|>assistant:" * add_generation_prompt
        return self.encode(text) if tokenize else text
"""


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_a_tokenizer_with_code_of_its_own(tmp_path: Path, template: str) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "tokenization_own.py").write_text(OWN_CODE)
    special = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    config = {
        "tokenizer_class": "OwnTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]},
        "chat_template": template,
        "added_tokens_decoder": {
            "256": {"content": "<|im_start|>", **special}, "257": {"content": "<|im_end|>", **special},
        },
        "eos_token": "<|im_end|>",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ExtractionError, match="cannot be loaded"):
        load_tokenizer(folder)
    tokenizer = load_tokenizer(folder, trust_remote_code=True)
    assert trained_text(tokenizer, TALK) == ["hi there 🙂<|im_end|>", "ciao<|im_end|>"]


@pytest.mark.slow
def test_nothing_is_downloaded(save: Callable[[str | None], Path]) -> None:
    """Code that a tokenizer names on a hub is not fetched, trusted or not; no connection is tried."""
    folder = save(CHATML)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["somebody/somewhere--tokenization_x.X", None]}
    config["tokenizer_class"] = "X"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    code = (
        "import socket, sys\n"
        "def refuse(*arguments): print('CONNECTS', arguments); raise OSError('no')\n"
        "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
        "from pathlib import Path\n"
        "from auxtap.core.errors import ExtractionError\n"
        "from auxtap.extraction.datasets.tokenizer import load_tokenizer\n"
        "try: load_tokenizer(Path(sys.argv[1]), trust_remote_code=True)\n"
        "except ExtractionError as error: print('REFUSED', error.message)\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("HF_HUB_OFFLINE", "HF_HOME")}
    environment["HF_HOME"] = str(folder / "home")
    result = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, env=environment)
    assert "REFUSED" in result.stdout and "CONNECTS" not in result.stdout, result.stdout + result.stderr


def test_tokenizers_that_cannot_be_used(save: Callable[[str | None], Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no chat template"):
        load_tokenizer(save(None))
    with pytest.raises(ExtractionError, match="is not there"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExtractionError, match="cannot be loaded"):
        load_tokenizer(tmp_path / "empty")
