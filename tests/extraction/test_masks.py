"""The mask is exact to the token: decoding what is trained on gives the assistant's text back, by any template."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from auxtap.extraction.datasets.masks import Codec, Span, mask_spans
from auxtap.extraction.datasets.reading import Conversation, Message, TokenizedConversation
from auxtap.extraction.datasets.tokenizer import UNTRAINED, ChatTokenizer
from auxtap.tests.extraction.chat_models import KINDS, TOKENIZERS, Kind, make_tokenizer

BY_NAME = {kind.name: kind for kind in KINDS}
# Words, blanks and line ends that merge with their neighbours, scripts of all widths, emoji of several code points.
PIECES = st.sampled_from(
    ["yes", "hello", " ", "  ", "\n", "\n\n", "\t", "The answer", "42", ".", "é", "ü", "e\u0301", "你好", "日本", "🙂",
     "👩\u200d💻", "🇺🇳", "\u00a0", "\u200d", "\U0001d518", "###",
     "ASSISTANT:", "[INST]", "<think>", "{}", "assistant\n"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=5).map("".join)


@st.composite
def conversations(draw: st.DrawFn, with_tools: bool) -> tuple[Message, ...]:
    """Roles in an order in which people speak, of any length, ended by anybody."""
    messages = [Message("system", draw(TEXTS))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages += [Message("user", draw(TEXTS)), Message("assistant", draw(TEXTS))]
        if with_tools and draw(st.booleans()):
            messages += [Message("tool", draw(TEXTS)), Message("assistant", draw(TEXTS))]
    if draw(st.booleans()):
        messages.append(Message("user", draw(TEXTS)))
    return tuple(messages)


@functools.cache
def chat(tokenizer: str, kind: str) -> tuple[ChatTokenizer, Any]:
    inner = make_tokenizer(tokenizer, BY_NAME[kind].text)
    return ChatTokenizer(inner), inner


def decode(inner: Any, ids: Sequence[int]) -> str:
    return str(inner.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def trained_runs(inner: Any, tokens: TokenizedConversation) -> list[str]:
    """Return the text of each run of trained tokens: what is decoded up to its end and was not up to its beginning."""
    ids, mask = list(tokens.input_ids), list(tokens.loss_mask)
    assert len(ids) == len(mask) and set(mask) <= {0, 1}
    runs = []
    for position, entry in enumerate(mask):
        if entry and (position == 0 or not mask[position - 1]):
            end = next((i for i in range(position, len(mask)) if not mask[i]), len(mask))
            head, whole = decode(inner, ids[:position]), decode(inner, ids[:end])
            assert whole.startswith(head)
            runs.append(whole[len(head) :])
    return runs


def expected(kind: Kind, messages: Sequence[Message]) -> list[str]:
    said = [kind.said(m, m is messages[-1]) for m in messages if m.role == "assistant"]
    return [text for text in said if text]


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_is_trained_on_is_what_the_assistant_says(kind: Kind, tokenizer: str) -> None:
    ours, inner = chat(tokenizer, kind.name)

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
    @given(conversations(kind.has_tools))
    # A line end and blanks at the beginning, where they merge with what the template puts before them.
    @example((Message("user", "a"), Message("assistant", "\n\n yes"), Message("user", ""), Message("assistant", "")))
    def check(messages: tuple[Message, ...]) -> None:
        wanted = expected(kind, messages)
        if not wanted:
            with pytest.raises(ValueError, match="nothing to train on"):
                ours.tokenize(Conversation(messages))
            return
        tokens = ours.tokenize(Conversation(messages))
        assert trained_runs(inner, tokens) == wanted
        turns = [message.to_template() for message in messages]
        text = inner.apply_chat_template(turns, tokenize=False)
        assert decode(inner, tokens.input_ids) == decode(inner, inner(text, add_special_tokens=False)["input_ids"])

    check()


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_tokens_are_taken_apart_only_where_they_run_across(tokenizer: str) -> None:
    """Where no token runs across a bound, the ids are those that transformers gives for the whole."""
    for kind in KINDS:
        ours, inner = chat(tokenizer, kind.name)
        messages = (
            Message("user", "hello"),
            Message("assistant", "yes 42"),
            Message("user", "no"),
            Message("assistant", "é🙂"),
        )
        turns = [message.to_template() for message in messages]
        whole = list(inner.apply_chat_template(turns, tokenize=True, return_dict=True)["input_ids"])
        ids = list(ours.tokenize(Conversation(messages)).input_ids)
        # There "\nyes" is one token, which the bound between template and words goes through.
        if (kind.name, tokenizer) != ("no_end_token", "metaspace-bpe"):
            assert ids == whole, kind.name


def test_a_token_across_a_bound_is_taken_apart() -> None:
    ours, inner = chat("bytes", "chatml")
    messages = (Message("user", "a"), Message("assistant", "\n\nyes"))
    turns = [message.to_template() for message in messages]
    whole = list(inner.apply_chat_template(turns, tokenize=True, return_dict=True)["input_ids"])
    tokens = ours.tokenize(Conversation(messages))
    assert list(tokens.input_ids) != whole and decode(inner, tokens.input_ids) == decode(inner, whole)
    assert trained_runs(inner, tokens) == ["\n\nyes<|im_end|>"]


def test_marked_templates_agree_with_transformers() -> None:
    ours, inner = chat("bytes", "chatml_marked")
    plain, _ = chat("bytes", "chatml")
    messages = (
        Message("system", "s"), Message("user", "héllo"), Message("assistant", "hi 🙂"), Message("user", ""),
        Message("assistant", "yes"), Message("tool", "42"), Message("assistant", "The answer"),
    )  # fmt: skip
    turns = [message.to_template() for message in messages]
    theirs = inner.apply_chat_template(turns, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    tokens = ours.tokenize(Conversation(messages))
    assert list(tokens.input_ids) == list(theirs["input_ids"])
    assert list(tokens.loss_mask) == list(theirs["assistant_masks"])
    assert plain.tokenize(Conversation(messages)) == tokens


@pytest.mark.parametrize("kind", ["chatml", "chatml_marked"])
def test_a_turn_of_weight_0_is_context(kind: str) -> None:
    ours, inner = chat("bytes", kind)
    untrained = Message("assistant", "no", trained=False)
    messages = (Message("user", "a"), untrained, Message("user", "b"), Message("assistant", "yes"))
    assert trained_runs(inner, ours.tokenize(Conversation(messages))) == ["yes<|im_end|>"]


def test_tool_calls_are_what_the_assistant_says() -> None:
    ours, inner = chat("bytes", "chatml")
    call = {"function": {"name": "sun", "arguments": {"at": "noon"}}}
    messages = (Message("user", "sun?"), Message("assistant", None, {"tool_calls": [call]}),
                Message("tool", "yes"), Message("assistant", "it shines"))  # fmt: skip
    tokens = ours.tokenize(Conversation(messages, ({"name": "sun"},)))
    assert trained_runs(inner, tokens) == ['<call>sun{"at": "noon"}</call><|im_end|>', "it shines<|im_end|>"]
    assert decode(inner, tokens.input_ids).startswith('<|im_start|>tools\n[{"name": "sun"}]<|im_end|>')


def test_a_template_that_joins_texts_is_given_the_arguments_as_text() -> None:
    inner = make_tokenizer(
        "bytes", BY_NAME["chatml"].text.replace("call.function.arguments | tojson", "call.function.arguments")
    )
    ours = ChatTokenizer(inner)
    call = {"function": {"name": "sun", "arguments": '{"at":  "noon"}'}}
    messages = (Message("user", "sun?"), Message("assistant", "", {"tool_calls": [call]}))
    assert trained_runs(inner, ours.tokenize(Conversation(messages))) == ['<call>sun{"at":  "noon"}</call><|im_end|>']
    objects = Message("assistant", "", {"tool_calls": [{"function": {"name": "sun", "arguments": {"at": 1}}}]})
    with pytest.raises(ValueError, match=r"refuses turn 2 \(assistant\)"):
        ours.tokenize(Conversation((messages[0], objects)))
    silent, _ = chat("bytes", "middle")
    with pytest.raises(ValueError, match=r"does not give back the tool calls of turn 2 \(assistant\)"):
        silent.tokenize(Conversation(messages))


TALK = (
    Message("system", "short"), Message("user", "a"), Message("assistant", "one"),
    Message("user", "b"), Message("assistant", "two"),
)  # fmt: skip


def load(template: str, **options: Any) -> tuple[ChatTokenizer, Any]:
    inner = make_tokenizer("bytes", Kind(template, lambda m, last: "").text)
    return ChatTokenizer(inner, **options), inner


@pytest.mark.parametrize("template", ["forgets_reasoning", "inst_late_system"])
def test_a_template_that_rewrites_history_is_refused_or_its_turns_left_out(template: str) -> None:
    refusing, _ = load(template)
    with pytest.raises(ValueError, match=r"rewrites .*turn 3 \(assistant\).*no exact mask"):
        refusing.tokenize(Conversation(TALK))
    lenient, inner = load(template, rewritten=UNTRAINED)
    (run,) = trained_runs(inner, lenient.tokenize(Conversation(TALK)))
    assert (
        run == {"inst_late_system": " two</s>", "forgets_reasoning": "<think>\n\n</think>\n\ntwo<|im_end|>"}[template]
    )


def test_marks_around_words_that_are_not_the_assistants_are_refused() -> None:
    marked = BY_NAME["chatml_marked"].text.replace(
        "{{ m.content + '<|im_end|>' }}", "{{ m.content[:2] + '<|im_end|>' }}"
    )
    inner = make_tokenizer("bytes", marked)
    with pytest.raises(ValueError, match=r"does not give back the words of turn 3 \(assistant\)"):
        ChatTokenizer(inner).tokenize(Conversation(TALK))
    short = (*TALK[:4], Message("assistant", "no"))
    lenient = ChatTokenizer(inner, rewritten=UNTRAINED)
    assert trained_runs(inner, lenient.tokenize(Conversation(short))) == ["no<|im_end|>"]


def test_reasoning_is_trained_on_where_the_template_keeps_it() -> None:
    for template, said in (
        ("forgets_reasoning", "<think>\nhmm\n</think>\n\ntwo<|im_end|>"),
        (
            "channels",
            "<|channel|>analysis<|message|>hmm<|end|><|start|>assistant<|channel|>final<|message|>two<|return|>",
        ),
    ):
        ours, inner = load(template)
        last = Message("assistant", "two", {"reasoning_content": "hmm"})
        assert trained_runs(inner, ours.tokenize(Conversation((Message("user", "b"), last)))) == [said]
        early = (*TALK[1:2], Message("assistant", "one", {"reasoning_content": "ah"}), *TALK[3:4], last)
        with pytest.raises(ValueError, match=r"rewrites turn 2 \(assistant\) once other turns follow"):
            ours.tokenize(Conversation(early))
    ours, _ = load("chatml")
    with pytest.raises(ValueError, match=r"does not give back the reasoning of turn 2 \(assistant\)"):
        ours.tokenize(Conversation((Message("user", "b"), last)))


def test_the_template_is_given_its_arguments() -> None:
    thinking, _ = load("thinking_prompt", template_args={"thinking": True})
    with pytest.raises(ValueError, match=r"rewrites what stands before turn 3 \(assistant\) once it is there"):
        thinking.tokenize(Conversation(TALK))
    silent, inner = load("forgets_reasoning", template_args={"thinking": False}, rewritten=UNTRAINED)
    assert trained_runs(inner, silent.tokenize(Conversation(TALK))) == ["two<|im_end|>"]
    ours, _ = load("thinking_prompt")
    with pytest.raises(ValueError, match=r"does not give back the words of turn 2 \(assistant\)"):
        ours.tokenize(Conversation((Message("user", "q"), Message("assistant", "hmm</think>yes"))))


def test_a_tokenizer_that_cannot_be_taken_apart_is_refused() -> None:
    """One token a word, a mark before each text, and no special token that could stand before one."""
    words = ["#", "to", "day", "today"]

    def encode(text: str) -> list[int]:
        text = "#" + text
        ids = []
        while text:
            word = max((w for w in words if text.startswith(w)), key=len)
            ids.append(words.index(word))
            text = text[len(word) :]
        return ids

    codec = Codec(encode, lambda ids: "".join(words[i] for i in ids)[1:], ())
    assert mask_spans("today", [Span(0, 5, 2)], codec).input_ids == [0, 3]
    with pytest.raises(ValueError, match=r"runs across .* turn 2, and the tokenizer cannot take the text apart"):
        mask_spans("today", [Span(2, 5, 2)], codec)


def test_long_conversations_are_read_in_one_go() -> None:
    """Behind a special token only the text from there on is encoded again, not all that stands before it."""
    ours, inner = chat("bytes", "chatml")
    seen = 0
    codec = ours._codec

    def counted(text: str) -> list[int]:
        nonlocal seen
        seen += len(text)
        return codec.encode(text)

    counting = ChatTokenizer(inner)
    counting._codec = Codec(counted, codec.decode, codec.specials, codec.divider)
    messages = tuple(Message("user" if i % 2 == 0 else "assistant", "hello " * 50) for i in range(80))
    tokens = counting.tokenize(Conversation(messages))
    assert len(trained_runs(inner, tokens)) == 40
    assert seen < 3 * len(decode(inner, tokens.input_ids))
