"""Datasets are checked to the last line before anything is sent; a bad line is named with its reason."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.extraction.datasets.reading import (
    Conversation,
    Dataset,
    TokenizedConversation,
    TokenizerFacts,
    read_dataset,
)

Reader = Callable[..., Dataset]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    def read_lines(*lines: str | bytes) -> Dataset:
        path = tmp_path / "d.jsonl"
        path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
        return read_dataset(path)

    return read_lines


def test_reads_ids_masks_and_blank_lines(read: Reader) -> None:
    dataset = read(
        '{"id": "a", "input_ids": [1, 2, 3], "loss_mask": [0, true, 1]}', "", ' {"id": "ü/b c", "input_ids": [70000]}'
    )
    first, second = dataset.samples
    assert (first.index, first.place.number, first.n_tokens, first.token_ids()) == (0, 1, 3, [1, 2, 3])
    assert first.loss_mask == b"\x00\x01\x01" and first.ids[:8] == b"\x01" + b"\x00" * 7
    assert (second.index, second.place.number, second.sample_id, second.loss_mask) == (1, 3, "ü/b c", b"\x01")
    assert dataset.n_tokens == 4


def test_the_digest_covers_ids_tokens_and_masks_and_not_the_spelling(read: Reader) -> None:
    digest = read('{"id": "a", "input_ids": [1, 2]}').digest
    assert read('{"input_ids":[1,2],"loss_mask":[1,1],"id":"\\u0061"}').digest == digest
    for other in ('{"id": "b", "input_ids": [1, 2]}', '{"id": "a", "input_ids": [1, 3]}',
                  '{"id": "a", "input_ids": [1, 2], "loss_mask": [1, 0]}'):  # fmt: skip
        assert read(other).digest != digest


BAD = {
    "{": "malformed JSON: ",
    '{"id": "a", "input_ids": [1]} x': "malformed JSON: Extra data",
    "[1]": "not a JSON object",
    '{"id": 7.5, "input_ids": [1]}': "id is neither a string nor a whole number",
    '{"id": true, "input_ids": [1]}': "id is neither a string nor a whole number",
    '{"id": "", "input_ids": [1]}': "id is empty",
    '{"id": "  ", "input_ids": [1]}': "id is empty",
    '{"id": "' + "x" * 300 + '", "input_ids": [1]}': "id has 300 characters",
    '{"id": "a\\nb", "input_ids": [1]}': "control characters",
    '{"id": "a\\u0000", "input_ids": [1]}': "control characters",
    '{"id": "a\\ud800", "input_ids": [1]}': "control characters",
    '{"id": "a\\u2028b", "input_ids": [1]}': "control characters",
    '{"id": "../../x", "input_ids": [1]}': "looks like a path",
    '{"id": "a/../x", "input_ids": [1]}': "looks like a path",
    '{"id": "/etc/passwd", "input_ids": [1]}': "looks like a path",
    '{"id": "a\\\\b", "input_ids": [1]}': "looks like a path",
    '{"id": "good", "input_ids": [1]}': "id 'good' stands on line 1 already",
    '{"id": "a"}': "has neither turns nor a list of input_ids",
    '{"id": "a", "input_ids": "12"}': "has neither turns nor a list of input_ids",
    '{"id": "a", "input_ids": []}': "input_ids is empty",
    '{"id": "a", "input_ids": [1, 2.0]}': "input_ids[1] is not an integer",
    '{"id": "a", "input_ids": [true]}': "input_ids[0] is not an integer",
    '{"id": "a", "input_ids": [-1]}': "input_ids[0] is -1",
    '{"id": "a", "input_ids": [99999999999999999999]}': "no token id",
    '{"id": "a", "input_ids": [1, 2], "loss_mask": [1]}': "loss_mask has 1 entries for 2 tokens",
    '{"id": "a", "input_ids": [1], "loss_mask": [2]}': "loss_mask[0] is neither 0 nor 1",
    '{"id": "a", "input_ids": [1], "loss_mask": [0.0]}': "loss_mask[0] is neither 0 nor 1",
    '{"id": "a", "input_ids": [1], "loss_mask": 1}': "loss_mask is not a list",
    '{"id": "a", "input_ids": [1], "messages": []}': "both input_ids and turns",
    '{"id": "a", "messages": []}': "messages is not a list of turns",
    '{"id": "a", "messages": [{"role": "user"}]}': "turn 1 of messages has no content of text",
    '{"id": "a", "messages": [{"content": "x"}]}': "turn 1 of messages has no role",
    '{"id": "a", "messages": [{"role": "owl", "content": "x"}]}': "turn 1 of messages has the unknown role 'owl'",
    '{"id": "a", "messages": ["x"]}': "turn 1 of messages is not an object",
    '{"id": "a", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}': "a part of type 'image_url'",
    '{"id": "a", "messages": [{"role": "user", "content": "x", "weight": 3}]}': "turn 1 of messages has the weight 3",
    '{"id": "a", "messages": [{"role": "user", "content": "x"}]}': "no turn of the assistant",
    '{"id": "a", "messages": [{"role": "user", "content": "\\ud83d"}, {"role": "assistant", "content": "x"}]}': (
        "turn 1 (user) holds a lone surrogate"
    ),
    '{"id":"a","tools":[{"\\ud83d":1}],"conversations":[{"from":"human","value":""},{"from":"gpt","value":""}]}': (
        "tools holds a lone surrogate"
    ),
    '{"id": "a", "messages": [{"role": "assistant", "content": "x"}]}': "turn 1 (assistant) stands at the beginning",
    '{"id": "a", "messages": [{"role": "user", "content": "x"}, {"role": "user", "content": "x"}]}': (
        "turn 2 (user) stands behind one of the user"
    ),
    '{"id": "a", "messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]}': (
        "turn 2 (tool) stands behind one of the user"
    ),
    '{"id": "a", "messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]}': (
        "turn 2 (system) stands behind one of the user"
    ),
    '{"id": "a", "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]}': (
        "turn 1 of messages calls a tool with arguments that are no JSON"
    ),
    '{"id": "a", "messages": [{"role": "user", "content": "x"}], "conversations": []}': "messages and conversations",
    '{"id": "a", "conversations": [{"from": "owl", "value": "x"}]}': "turn 1 of conversations is from 'owl'",
    '{"id": "a", "conversations": [{"from": "human"}]}': "turn 1 of conversations has no from and value of text",
    '{"id": "a", "input_ids": [1, 2, 3], "labels": [-100, 3, -100]}': "labels[1] is 3, neither -100 nor input_ids[1]",
    '{"id": "a", "input_ids": [1], "labels": [1], "loss_mask": [1]}': "has both loss_mask and labels",
    '{"id": "a", "input_ids": [1], "assistant_masks": [1, 0]}': "assistant_masks has 2 entries for 1 tokens",
    "[" * 100_000: "malformed JSON: nested too deep",
}


@pytest.mark.parametrize("line", BAD, ids=range(len(BAD)))
def test_a_bad_line_is_named(read: Reader, line: str) -> None:
    with pytest.raises(ExtractionError) as raised:
        read('{"id": "good", "input_ids": [1]}', line)
    assert "d.jsonl:2: " in raised.value.message and BAD[line] in raised.value.message


def test_what_is_no_text_is_named(read: Reader) -> None:
    with pytest.raises(ExtractionError, match=r"d.jsonl:1: malformed JSON: not UTF-8"):
        read(b'{"id": "\xff", "input_ids": [1]}')


def test_empty_and_missing_files(read: Reader, tmp_path: Path) -> None:
    with pytest.raises(ExtractionError, match="holds no samples"):
        read("", " ")
    with pytest.raises(ExtractionError, match=r"cannot read dataset .*nowhere: No such file"):
        read_dataset(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ExtractionError, match=r"folder .*folder holds no dataset"):
        read_dataset(tmp_path / "folder")


class Words:
    """One token a character; the assistant's are trained on."""

    facts = TokenizerFacts("sha256:of-words", 0x110000)

    def tokenize(self, conversation: Conversation) -> TokenizedConversation:
        messages = conversation.messages
        if messages[-1].role == "tool":
            raise ValueError("the chat template refuses turn 3 (tool): no")
        text = [(ord(c), int(m.role == "assistant")) for m in messages for c in m.content or ""]
        return TokenizedConversation([token for token, _ in text], [mask for _, mask in text])


def test_messages_go_through_the_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    turns = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]
    path.write_text(json.dumps({"id": "x", "messages": turns}))
    (sample,) = read_dataset(path, Words()).samples
    assert sample.token_ids() == [97, 98, 99] and sample.loss_mask == b"\x00\x00\x01"
    with pytest.raises(UsageError, match=r"chat.jsonl:1: conversations need a tokenizer"):
        read_dataset(path)
    path.write_text(json.dumps({"id": "x", "messages": [*turns, {"role": "tool", "content": "1"}]}))
    with pytest.raises(ExtractionError, match=r"chat.jsonl:1: the chat template refuses turn 3 \(tool\)"):
        read_dataset(path, Words())
