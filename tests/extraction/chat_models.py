"""Chat templates of different kinds, what each trains on by its own rules, and tokenizers of different kinds."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auxtap.extraction.datasets.reading import Message

TEMPLATES = Path(__file__).parents[2] / "fixtures" / "chat_templates"
SPECIALS = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_tool|>", "<|im_middle|>",
    "<|User|>", "<|Assistant|>", "<|end_of_sentence|>",
    "<|start|>", "<|end|>", "<|return|>", "<|channel|>", "<|message|>", "<start_of_turn>", "<end_of_turn>",
)  # fmt: skip
# Text that makes merges across what templates put beside the words: blanks, line ends, common beginnings.
CORPUS = [
    "user\n\nThe answer is 42.\n\nassistant\n\n  Yes, it is.\n", "### assistant:\nyes\n\n### user:\nno  \n",
    "ASSISTANT: hello there USER: hello [INST] hello [/INST] hello",
    "héllo wörld 你好世界 🙂🙂 def f(x):\n    return x\n",
] * 8  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A chat template; `said` is what the assistant's `message` trains on, given whether it ends the conversation."""

    name: str
    said: Callable[[Message, bool], str]
    has_tools: bool = True

    @property
    def text(self) -> str:
        """The template."""
        return (TEMPLATES / f"{self.name}.jinja").read_text().rstrip("\n")


def content(message: Message) -> str:
    return message.content or ""


KINDS = (
    Kind("chatml", lambda m, last: content(m) + "<|im_end|>"),
    Kind("chatml_marked", lambda m, last: content(m) + "<|im_end|>"),
    Kind("headers", lambda m, last: content(m).strip() + "<|eot_id|>"),
    Kind("inst", lambda m, last: " " + content(m) + "</s>", has_tools=False),
    Kind("middle", lambda m, last: content(m) + "<|im_end|>"),
    Kind("thinking_prompt", lambda m, last: content(m) + "<|end_of_sentence|>"),
    # Its end token is another one when turns follow, which the model would not have said.
    Kind("channels", lambda m, last: "<|channel|>final<|message|>" + content(m) + ("<|return|>" if last else "")),
    Kind("no_system", lambda m, last: content(m).strip() + "<end_of_turn>"),
    Kind("named_speakers", lambda m, last: " " + content(m) + "</s>"),
    Kind("no_end_token", lambda m, last: content(m)),
)


def _wrap(core: Any, template: str) -> Any:
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer


@functools.cache
def _core(kind: str) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if kind == "bytes":
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
        core.train_from_iterator(CORPUS, trainer)
        return str(core.to_str())
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = pre_tokenizers.Metaspace(prepend_scheme="first")
    if kind == "metaspace-bpe":
        core = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", *fallback], show_progress=False)
        core.pre_tokenizer = pieces
        core.train_from_iterator(CORPUS, trainer)
    else:
        trained = Tokenizer(models.Unigram())
        trained.pre_tokenizer = pieces
        trainer = trainers.UnigramTrainer(
            vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
        )
        trained.train_from_iterator(CORPUS, trainer)
        vocab = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["vocab"]]
        vocab += [(token, -20.0) for token in fallback]
        core = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
        core.pre_tokenizer = pieces
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return str(core.to_str())


TOKENIZERS = ("bytes", "metaspace-bpe", "metaspace-unigram")


def make_tokenizer(kind: str, template: str) -> Any:
    """Return a transformers tokenizer of a kind with a chat template."""
    from tokenizers import Tokenizer

    return _wrap(Tokenizer.from_str(_core(kind)), template)
