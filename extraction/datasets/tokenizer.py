"""Turn conversations into tokens with the model's own tokenizer; the mask is exact or it is refused."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.core.files import sha256_bytes, sha256_file
from auxtap.extraction.datasets.conversations import ASSISTANT, Conversation, Message
from auxtap.extraction.datasets.masks import Codec, Span, mask_spans
from auxtap.extraction.datasets.sample import TokenizedConversation, TokenizerFacts

# What transformers looks for itself (tokenization_utils_base.py, apply_chat_template).
_GENERATION_BLOCK = re.compile(r"\{%-?\s*generation\s*-?%\}")
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.*",
    "vocab.json", "vocab.txt", "merges.txt", "*.model", "*.tiktoken", "tokenization_*.py",
)  # fmt: skip
REFUSE, UNTRAINED = "refuse", "untrained"


class TemplateRefusalError(ValueError):
    """A chat template does not take a conversation."""


@dataclass(frozen=True)
class _Given:
    """A conversation, and its turns as the template is given them."""

    conversation: Conversation
    turns: list[dict[str, Any]]


class ChatTokenizer:
    """A tokenizer with a chat template."""

    def __init__(
        self,
        tokenizer: Any,
        facts: TokenizerFacts | None = None,
        *,
        template_args: Mapping[str, Any] | None = None,
        rewritten: str = REFUSE,
        need_template: bool = True,
    ) -> None:
        """Wrap a transformers tokenizer.

        `template_args` are handed to the chat template. Turns that it rewrites later are refused with their whole
        conversation, or left `untrained`.

        Raises:
            UsageError: it has no chat template.
        """
        template = _template_of(tokenizer)
        if template is None and need_template:
            raise _no_template()
        self.facts = facts
        self._tokenizer = tokenizer
        self._template = template
        self._args = dict(template_args or {})
        self._rewritten = rewritten
        self._marks_generation = _GENERATION_BLOCK.search(template or "") is not None
        self._codec = codec_of(tokenizer)
        self._specials = self._codec.pattern()

    def tokenize(self, conversation: Conversation) -> TokenizedConversation:
        """Apply the chat template; the mask is 1 on what the assistant says, its end-of-turn token included.

        Raises:
            ValueError: the template refuses the conversation, or rewrites earlier turns; names the turn.
            UsageError: there is no template.
        """
        if self._template is None:
            raise _no_template()
        try:
            return self._tokenize(conversation)
        except TemplateRefusalError:
            if not any(message.has_text_arguments for message in conversation.messages):
                raise
        return self._tokenize(conversation, parsed=False)

    def _tokenize(self, conversation: Conversation, *, parsed: bool = True) -> TokenizedConversation:
        turns = [message.to_template(parsed=parsed) for message in conversation.messages]
        given = _Given(conversation, turns)
        marked = self._render_marked(given) if self._marks_generation else None
        # A tokenizer with a way of its own to apply the template may give another text than the template by itself.
        if marked is not None and marked[0] != self._render(given, len(turns)):
            marked = None
        text, spans = marked or self._compare(given)
        tokens = mask_spans(text, spans, self._codec)
        if 1 not in tokens.loss_mask:
            raise ValueError("the chat template gives no token to the assistant, so nothing to train on")
        return tokens

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        return self._codec.decode(ids)

    def token_text(self, token: int) -> str:
        """Return what one token says by itself; a token within a character is shown as the tokenizer names it."""
        text = self._codec.decode([token])
        return text if text and "\ufffd" not in text else str(self._tokenizer.convert_ids_to_tokens(token) or "")

    def _render(self, given: "_Given", n_turns: int, *, prompt: bool = False) -> str:
        """Return the text of the first `n_turns`, with the beginning of an answer behind it for a `prompt`."""
        try:
            text = self._tokenizer.apply_chat_template(
                given.turns[:n_turns],
                tools=_plain(given.conversation.tools),
                tokenize=False,
                add_generation_prompt=prompt,
                **self._args,
            )
        except Exception as error:
            # The template is a program of the model's author and raises what it likes.
            raise _refusal(given.conversation.messages[:n_turns], error) from None
        return str(text)

    def _render_marked(self, given: "_Given") -> tuple[str, list[Span]]:
        """Return the text and what the template itself marks as generated."""
        from transformers.utils.chat_template_utils import render_jinja_template

        messages = given.conversation.messages
        try:
            (text,), (marks,) = render_jinja_template(
                conversations=[given.turns],
                tools=_plain(given.conversation.tools),
                chat_template=self._template,
                return_assistant_tokens_mask=True,
                **{**self._tokenizer.special_tokens_map, **self._args},
            )
        except Exception as error:
            raise _refusal(messages, error) from None
        turns = [number for number, message in enumerate(messages, start=1) if message.role == ASSISTANT]
        if len(marks) != len(turns):
            if not all(messages[turn - 1].trained for turn in turns):
                raise ValueError(
                    f"the chat template marks {len(marks)} stretches for {len(turns)} turns of the assistant, "
                    "so those of weight 0 cannot be told from the others"
                )
            return text, [Span(begin, end, len(messages)) for begin, end in marks]
        spans = [Span(begin, end, turn) for (begin, end), turn in zip(marks, turns, strict=True)]
        return text, self._exact(
            _what_is_dropped(span.turn, messages[span.turn - 1], text[span.begin : span.end]) or span
            for span in spans
            if messages[span.turn - 1].trained
        )

    def _compare(self, given: "_Given") -> tuple[str, list[Span]]:
        """Return the text and what each turn of the assistant adds to the conversation before it."""
        messages = given.conversation.messages
        text = self._render(given, len(messages))
        found = []
        for turn, message in enumerate(messages, start=1):
            if message.role != ASSISTANT or not message.trained:
                continue
            before = self._render(given, turn - 1, prompt=True)
            after = self._render(given, turn) if turn < len(messages) else text
            found.append(self._find_span(turn, message, before, after, text))
        return text, self._exact(found)

    def _exact(self, found: Iterable[Span | str]) -> list[Span]:
        """Return the spans among what was found of the turns; the others are faults.

        Raises:
            ValueError: a fault is not to be suffered, or there is nothing else.
        """
        spans, faults = [], []
        for each in found:
            if isinstance(each, Span):
                spans.append(each)
            else:
                faults.append(each)
        if faults and (self._rewritten == REFUSE or not spans):
            raise ValueError(f"{faults[0]}, so there is no exact mask")
        return spans

    def _find_span(self, turn: int, message: Message, before: str, after: str, text: str) -> Span | str:
        """Return where a turn stands in `text`, or what is wrong with it."""
        name = f"turn {turn} (assistant)"
        if not after.startswith(before):
            return f"the chat template rewrites what stands before {name} once it is there"
        said = after[len(before) :]
        end, without_end_token = self._measure(said, message)
        if not text.startswith(after[: len(before) + end]):
            # Some templates end a turn otherwise when others follow (gpt-oss); the words may still be the same.
            end = without_end_token
            if not text.startswith(after[: len(before) + end]):
                return f"the chat template rewrites {name} once other turns follow"
        return _what_is_dropped(turn, message, said[:end]) or Span(len(before), len(before) + end, turn)

    def _measure(self, said: str, message: Message) -> tuple[int, int]:
        """Return how many characters of a rendered turn count: with its end token, and without it.

        What the template puts behind that is its own. A turn without an end token counts to the end of its content.
        """
        ends = [match.span() for match in self._specials.finditer(said)]
        if ends and not said[ends[-1][1] :].strip():
            return ends[-1][1], ends[-1][0]
        given = message.content or ""
        for content in (given, given.strip()):
            for place in (said.find(content), said.rfind(content)):
                if place >= 0 and not said[place + len(content) :].strip():
                    return place + len(content), place + len(content)
        return len(said), len(said)


def _template_of(tokenizer: Any) -> str | None:
    try:
        return str(tokenizer.get_chat_template())
    except ValueError:
        return None


def _no_template() -> UsageError:
    return UsageError(
        "the tokenizer has no chat template",
        hint="give the folder of a chat model's tokenizer, or a dataset of input_ids",
    )


def _refusal(messages: Sequence[Message], error: Exception) -> TemplateRefusalError:
    return TemplateRefusalError(f"the chat template refuses turn {len(messages)} ({messages[-1].role}): {error}")


def _plain(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    return [dict(tool) for tool in tools] or None


def _what_is_dropped(turn: int, message: Message, said: str) -> str | None:
    """Say what of a turn is not in what the template made of it, blanks aside; None when all is."""
    spoken = _squeeze(said)
    calls = [("tool calls", call["function"]["name"]) for call in message.extras.get("tool_calls", ())]
    for what, given in (("words", message.content), ("reasoning", _reasoning(message)), *calls):
        if _squeeze(given) not in spoken:
            return f"the chat template does not give back the {what} of turn {turn} (assistant)"
    return None


def _reasoning(message: Message) -> str | None:
    value = message.extras.get("reasoning_content") or message.extras.get("reasoning")
    return value if isinstance(value, str) else None


def _squeeze(text: str | None) -> str:
    return "".join((text or "").split())


def codec_of(tokenizer: Any) -> Codec:
    """Return the two ways of a transformers tokenizer."""
    added = tokenizer.added_tokens_decoder
    specials = {str(token): int(number) for number, token in added.items() if token.special}
    dividers = [(str(token), int(number)) for number, token in added.items() if token.special and not token.rstrip]
    specials.update(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    return Codec(
        encode=lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"]),
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)),
        specials=tuple(specials.items()),
        divider=dividers[0] if dividers else None,
    )


def load_tokenizer(
    folder: Path,
    *,
    trust_remote_code: bool = False,
    template_args: Mapping[str, Any] | None = None,
    rewritten: str = REFUSE,
    need_template: bool = True,
) -> ChatTokenizer:
    """Load a tokenizer with a chat template from local files; nothing is downloaded.

    Raises:
        UsageError: transformers is not installed, or the tokenizer has no chat template.
        ExtractionError: the folder holds no usable tokenizer.
    """
    if rewritten not in (REFUSE, UNTRAINED):
        raise UsageError(f"--rewritten is {rewritten!r}", hint=f"one of {REFUSE}, {UNTRAINED}")
    tokenizer = load_bare_tokenizer(folder, trust_remote_code=trust_remote_code)
    facts = TokenizerFacts(tokenizer_digest(folder), len(tokenizer))
    return ChatTokenizer(
        tokenizer, facts, template_args=template_args, rewritten=rewritten, need_template=need_template
    )


def load_bare_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Load a transformers tokenizer from local files, chat template or not; raises as `load_tokenizer`."""
    if not folder.is_dir():
        raise ExtractionError(f"tokenizer folder {folder} is not there", hint="--tokenizer takes a local folder")
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Without torch transformers warns that models are not to be had; none is wanted.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise UsageError(
            "conversations need transformers, which is not installed beside auxtap",
            hint="pip install 'auxtap[tokenizer]'",
        ) from None
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:
        # Which exceptions come depends on the tokenizer's class; the first line says what is wrong.
        first_line = str(error).strip().partition("\n")[0]
        raise ExtractionError(
            f"tokenizer in {folder} cannot be loaded: {first_line}",
            hint="tokenizers with code of their own need --trust-remote-code",
        ) from None


def doubts_of_tokenizer(facts: TokenizerFacts | None, model: Path, vocab_size: int) -> Iterator[str]:
    """Say what speaks against a dataset's tokenizer being that of the model in the folder `model`.

    Ids beyond the vocabulary are refused elsewhere; this is about those that only might come.
    """
    if facts is None:
        return
    if facts.n_ids > vocab_size:
        yield f"the dataset's tokenizer has {facts.n_ids:,} ids, the served model embeddings for {vocab_size:,} only"
    if _tokenizer_files(model) and tokenizer_digest(model) != facts.digest:
        yield f"the dataset's tokenizer is not the one in {model}, which is served: its files differ"


def _tokenizer_files(folder: Path) -> list[Path]:
    return sorted({path for pattern in _TOKENIZER_FILES for path in folder.glob(pattern) if path.is_file()})


def tokenizer_digest(folder: Path) -> str:
    """Return a digest of the files that make a tokenizer what it is."""
    files = _tokenizer_files(folder)
    return "sha256:" + sha256_bytes("".join(f"{path.name} {sha256_file(path)}\n" for path in files).encode())
