"""Datasets are checked to the last line before anything is sent; a bad line is named with its reason."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from auxtap.core.errors import ExtractionError, UsageError
from auxtap.extraction.samples import Dataset, Message, TokenizedConversation, read_dataset

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
    assert (first.index, first.line, first.n_tokens, first.token_ids()) == (0, 1, 3, [1, 2, 3])
    assert first.loss_mask == b"\x00\x01\x01" and first.ids[:8] == b"\x01" + b"\x00" * 7
    assert (second.index, second.line, second.sample_id, second.loss_mask) == (1, 3, "ü/b c", b"\x01")
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
    '{"input_ids": [1]}': "id is missing",
    '{"id": 7, "input_ids": [1]}': "id is not a string",
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
    '{"id": "a"}': "has no list of input_ids",
    '{"id": "a", "input_ids": "12"}': "has no list of input_ids",
    '{"id": "a", "input_ids": []}': "input_ids is empty",
    '{"id": "a", "input_ids": [1, 2.0]}': "input_ids[1] is not an integer",
    '{"id": "a", "input_ids": [true]}': "input_ids[0] is not an integer",
    '{"id": "a", "input_ids": [-1]}': "input_ids[0] is -1",
    '{"id": "a", "input_ids": [99999999999999999999]}': "no token id",
    '{"id": "a", "input_ids": [1, 2], "loss_mask": [1]}': "loss_mask has 1 entries for 2 tokens",
    '{"id": "a", "input_ids": [1], "loss_mask": [2]}': "loss_mask[0] is neither 0 nor 1",
    '{"id": "a", "input_ids": [1], "loss_mask": [0.0]}': "loss_mask[0] is neither 0 nor 1",
    '{"id": "a", "input_ids": [1], "loss_mask": 1}': "loss_mask is not a list",
    '{"id": "a", "input_ids": [1], "messages": []}': "both input_ids and messages",
    '{"id": "a", "messages": []}': "messages is not a list of turns",
    '{"id": "a", "messages": [{"role": "user"}]}': "turn 1 of messages",
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
    with pytest.raises(ExtractionError, match="Is a directory"):
        read_dataset(tmp_path)


class Words:
    """One token a character; the assistant's are trained on."""

    def tokenize(self, messages: Sequence[Message]) -> TokenizedConversation:
        if messages[-1].role == "tool":
            raise ValueError("the chat template refuses turn 1 (tool): no")
        text = [(ord(c), int(m.role == "assistant")) for m in messages for c in m.content]
        return TokenizedConversation([token for token, _ in text], [mask for _, mask in text])


def test_messages_go_through_the_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    turns = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]
    path.write_text(json.dumps({"id": "x", "messages": turns}))
    (sample,) = read_dataset(path, Words()).samples
    assert sample.token_ids() == [97, 98, 99] and sample.loss_mask == b"\x00\x00\x01"
    with pytest.raises(UsageError, match=r"chat.jsonl:1: messages need a tokenizer"):
        read_dataset(path)
    path.write_text(json.dumps({"id": "x", "messages": [{"role": "tool", "content": "1"}]}))
    with pytest.raises(ExtractionError, match=r"chat.jsonl:1: the chat template refuses turn 1 \(tool\)"):
        read_dataset(path, Words())
