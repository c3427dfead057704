"""Datasets in every shape in which people have them: one content, one digest; what is damaged is named."""

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from auxtap.commands.views import console
from auxtap.core.errors import ExtractionError, UsageError
from auxtap.extraction.datasets.holdout import Holdout, parse_holdout
from auxtap.extraction.datasets.json_array import array_entries
from auxtap.extraction.datasets.reading import (
    Conversation,
    Dataset,
    DatasetRules,
    TokenizedConversation,
    TokenizerFacts,
    read_dataset,
    survey_dataset,
)
from auxtap.extraction.datasets.records import read_records
from auxtap.extraction.datasets.sent import sent_lines

FIXTURES = Path(__file__).parents[2] / "fixtures" / "datasets"
TALKS = [
    [("user", "héllo"), ("assistant", "hi 🙂")],
    [("system", "be short"), ("user", "1+1?"), ("assistant", "2"), ("user", ""), ("assistant", "")],
    [("user", "weather?"), ("assistant", '{"call": 1}'), ("tool", "sun"), ("assistant", "sunny")],
]
SPEAKERS = {"user": "human", "assistant": "gpt", "system": "system", "tool": "observation"}


class Words:
    """One token a character, and one for the end of each turn; the assistant's are trained on."""

    facts = TokenizerFacts("sha256:of-words", 0x110000)

    def tokenize(self, conversation: Conversation) -> TokenizedConversation:
        pairs = [
            (token, int(message.role == "assistant"))
            for message in conversation.messages
            for token in [*map(ord, message.content or ""), 3]
        ]
        return TokenizedConversation([token for token, _ in pairs], [mask for _, mask in pairs])


def openai() -> list[dict[str, Any]]:
    return [
        {"id": str(i), "messages": [{"role": r, "content": c} for r, c in talk], "source": "x"}
        for i, talk in enumerate(TALKS)
    ]


def sharegpt() -> list[dict[str, Any]]:
    return [
        {"id": i, "conversations": [{"from": SPEAKERS[r], "value": c} for r, c in talk]} for i, talk in enumerate(TALKS)
    ]


def pretokenized() -> list[dict[str, Any]]:
    dataset = [Words().tokenize(Conversation(tuple(_messages(talk)))) for talk in TALKS]
    return [
        {"id": str(i), "input_ids": tokens.input_ids, "loss_mask": tokens.loss_mask} for i, tokens in enumerate(dataset)
    ]


def by_columns() -> list[dict[str, Any]]:
    return [
        {"id": str(i), "messages": {"role": [r for r, _ in talk], "content": [c for _, c in talk]}}
        for i, talk in enumerate(TALKS)
    ]


def labelled() -> list[dict[str, Any]]:
    return [
        {**record, "labels": [t if m else -100 for t, m in zip(record["input_ids"], mask, strict=True)]}
        for record in pretokenized()
        for mask in [record.pop("loss_mask")]
    ]


def _messages(talk: Sequence[tuple[str, str]]) -> Iterator[Any]:
    from auxtap.extraction.datasets.reading import Message

    return (Message(role, content) for role, content in talk)


def lines(records: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def as_jsonl(folder: Path, records: list[dict[str, Any]]) -> Path:
    path = folder / "data.jsonl"
    path.write_bytes(lines(records))
    return path


def as_array(folder: Path, records: list[dict[str, Any]]) -> Path:
    path = folder / "data.json"
    path.write_text(json.dumps(records, indent=2, ensure_ascii=False))
    return path


def as_gzip(folder: Path, records: list[dict[str, Any]]) -> Path:
    path = folder / "data.jsonl.gz"
    half = len(records) // 2
    path.write_bytes(gzip.compress(lines(records[:half])) + gzip.compress(lines(records[half:])))
    return path


def as_zstd(folder: Path, records: list[dict[str, Any]]) -> Path:
    path = folder / "data.jsonl.zst"
    with pyarrow.output_stream(str(path), compression="zstd") as file:
        file.write(lines(records))
    return path


def as_parquet(folder: Path, records: list[dict[str, Any]]) -> Path:
    path = folder / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path, row_group_size=2)
    return path


def as_saved(folder: Path, records: list[dict[str, Any]]) -> Path:
    """What `Dataset.save_to_disk` makes, in two files."""
    path = folder / "saved"
    path.mkdir()
    table = pyarrow.Table.from_pylist(records)
    names = []
    for number, part in enumerate((table.slice(0, 1), table.slice(1))):
        names.append(f"data-{number:05d}-of-00002.arrow")
        with pyarrow.ipc.new_stream(str(path / names[-1]), table.schema) as stream:
            stream.write_table(part, max_chunksize=16)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (path / "dataset_info.json").write_text("{}")
    return path


def as_folder(folder: Path, records: list[dict[str, Any]]) -> Path:
    path = folder / "many"
    path.mkdir()
    (path / "b.jsonl").write_bytes(lines(records[1:]))
    (path / "a.jsonl.gz").write_bytes(gzip.compress(lines(records[:1])))
    (path / "README.md").write_text("no data")
    return path


FILES = [as_jsonl, as_array, as_gzip, as_zstd, as_parquet, as_saved, as_folder]
SHAPES = [openai, sharegpt, by_columns, pretokenized, labelled]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("write", FILES)
def test_every_shape_in_every_file_is_the_same_dataset(
    tmp_path: Path, write: Callable[..., Path], shape: Callable[[], list[dict[str, Any]]]
) -> None:
    whole = read_dataset(as_jsonl(tmp_path, openai()), Words())
    dataset = read_dataset(write(tmp_path, shape()), Words())
    assert dataset.digest == whole.digest
    assert [sample.sample_id for sample in dataset.samples] == ["0", "1", "2"]
    assert dataset.samples[0].token_ids() == [*map(ord, "héllo"), 3, *map(ord, "hi 🙂"), 3]
    assert dataset.samples[0].loss_mask == b"\0" * 6 + b"\1" * 5
    assert dataset.samples[1].loss_mask[-1:] == b"\1"
    assert (dataset.tokenizer is None) == (shape in (pretokenized, labelled))


def test_what_the_package_datasets_saved_is_read() -> None:
    dataset = read_dataset(FIXTURES / "saved", Words())
    assert [sample.n_tokens for sample in dataset.samples] == [
        len("hi") + len("hello 🙂") + 2,
        len("a") + len("bc") + 2,
    ]
    with pytest.raises(UsageError, match="holds the splits test, train") as raised:
        read_dataset(FIXTURES / "saved_splits", Words())
    assert raised.value.hint is not None and "saved_splits/train" in raised.value.hint
    assert len(read_dataset(FIXTURES / "saved_splits" / "test", Words()).samples) == 1


def test_records_without_an_id_are_called_after_their_place(tmp_path: Path) -> None:
    records = openai()
    for record in records:
        del record["id"]
    dataset = read_dataset(as_parquet(tmp_path, records), Words())
    assert [sample.sample_id for sample in dataset.samples] == [f"data.parquet/row-{n}" for n in (1, 2, 3)]


def test_a_turn_of_weight_0_a_system_field_and_parts_of_text(tmp_path: Path) -> None:
    seen: list[Conversation] = []

    class Spy(Words):
        def tokenize(self, conversation: Conversation) -> TokenizedConversation:
            seen.append(conversation)
            return super().tokenize(conversation)

    turns: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "no", "weight": 0},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}]},
        {"role": "tool", "content": "1", "tool_call_id": "7", "name": None, "tool_calls": []},
        {"role": "assistant", "content": "yes", "weight": 1},
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    records: list[dict[str, Any]] = [{"messages": turns, "tools": json.dumps(tools)}, {"system": "s", "conversations": [
        {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}]  # fmt: skip
    read_dataset(as_jsonl(tmp_path, records), Spy())
    first, second = seen
    assert first.messages[0].content == "ab" and list(first.tools) == tools
    assert [message.trained for message in first.messages if message.role == "assistant"] == [False, True, True]
    assert first.messages[3].to_template()["tool_calls"] == [{"function": {"name": "f", "arguments": {"x": 1}}}]
    assert first.messages[3].to_template(parsed=False)["tool_calls"] == turns[3]["tool_calls"]
    assert first.messages[4].extras == {"tool_call_id": "7"}
    assert [message.role for message in second.messages] == ["system", "user", "assistant"]


def test_bad_records_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"input_ids": [1, 2]},
        {"input_ids": [1], "loss_mask": [1, 1]},
        {"input_ids": [3]},
        {"id": "x"},
    ]
    path = as_jsonl(tmp_path, records)
    named = r"data\.jsonl:2: loss_mask has 2 entries for 1 tokens \(the first of 2 bad records among 4\)"
    with pytest.raises(ExtractionError, match=named):
        read_dataset(path)
    with pytest.raises(ExtractionError, match=r"data\.jsonl:2: loss_mask has .*; then .*:5: conversations need a tok"):
        records.append({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})
        read_dataset(as_jsonl(tmp_path, records))
    path = as_jsonl(tmp_path, records[:4])
    dataset = read_dataset(path, rules=DatasetRules(on_bad="skip"))
    assert [sample.place.number for sample in dataset.samples] == [1, 3]
    assert (dataset.counts.records, dataset.counts.bad) == (4, 2)
    assert str(dataset.first_bad) == f"{path}:2: loss_mask has 2 entries for 1 tokens"
    survey = survey_dataset(path)
    assert [str(bad).removeprefix(str(path)) for bad in survey.bad][
        1
    ] == ":4: has neither turns nor a list of input_ids"
    rows = as_parquet(tmp_path, [{"input_ids": [1, 2]}, {"input_ids": [-1]}])
    with pytest.raises(ExtractionError, match=r"data\.parquet: row 2: input_ids\[0\] is -1"):
        read_dataset(rows)
    entries = as_array(tmp_path, [{"input_ids": [1]}, {"input_ids": []}])
    with pytest.raises(ExtractionError, match=r"data\.json: entry 2: input_ids is empty"):
        read_dataset(entries)
    path.write_text('{"input_ids": []}\n')
    with pytest.raises(ExtractionError, match=r"holds no samples: .*:1: input_ids is empty"):
        read_dataset(path, rules=DatasetRules(on_bad="skip"))


@pytest.mark.parametrize("kind", ["parquet", "gz", "zst", "arrow", "json"])
def test_half_a_file_is_named_whatever_is_to_be_skipped(tmp_path: Path, kind: str) -> None:
    dice = random.Random(7)
    records = [{"input_ids": dice.choices(range(50_000), k=200)} for _ in range(300)]
    write = {"parquet": as_parquet, "gz": as_gzip, "zst": as_zstd, "arrow": as_saved, "json": as_array}[kind]
    path = write(tmp_path, records)
    file = path / "data-00001-of-00002.arrow" if kind == "arrow" else path
    data = file.read_bytes()
    for n_bytes in (len(data) * 3 // 4, len(data) - 5):
        file.write_bytes(data[:n_bytes])
        with pytest.raises(ExtractionError, match=f"{file.name} is damaged: "):
            read_dataset(path, rules=DatasetRules(on_bad="skip"))
    file.write_bytes(data)
    assert len(read_dataset(path).samples) == 300


def test_damage_in_the_middle_is_named_with_its_place(tmp_path: Path) -> None:
    dice = random.Random(7)
    records = [{"input_ids": dice.choices(range(50_000), k=200)} for _ in range(300)]
    for write in (as_parquet, as_gzip):
        path = write(tmp_path, records)
        data = bytearray(path.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
        path.write_bytes(data)
        with pytest.raises(ExtractionError, match=r"is damaged: .* after (row|line) \d+"):
            read_dataset(path)
    path = tmp_path / "a.json"
    path.write_text('[{"input_ids": [1]}, {"input_ids": [2] "x": 1}, {"input_ids": [3]}]')
    with pytest.raises(ExtractionError, match=r"Expecting ',' delimiter.*after entry 1 of its array"):
        read_dataset(path)


def test_folders_that_cannot_be_read(tmp_path: Path) -> None:
    saved = as_saved(tmp_path, pretokenized())
    (saved / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(ExtractionError, match=r"data-00001-of-00002\.arrow, which state\.json names, is not there"):
        read_dataset(saved)
    for text in ("{", "{}", '{"_data_files": []}', '{"_data_files": [{"filename": "../x"}]}'):
        (saved / "state.json").write_text(text)
        with pytest.raises(ExtractionError, match=r"state\.json is not what datasets writes"):
            read_dataset(saved)
    with pytest.raises(ExtractionError, match="has no column messages, conversations or input_ids, only text"):
        read_dataset(as_parquet(tmp_path, [{"text": "x"}]))


def test_too_long_is_cut_or_left_out(tmp_path: Path) -> None:
    records = [
        {"id": "fits", "input_ids": [1, 2, 3]},
        {"id": "cut", "input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1]},
        {"id": "bare", "input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 0, 1]},
    ]
    path = as_jsonl(tmp_path, records)
    cut = read_dataset(path, rules=DatasetRules(max_tokens=3))
    assert [(s.sample_id, s.token_ids(), s.loss_mask) for s in cut.samples] == [
        ("fits", [1, 2, 3], b"\1\1\1"), ("cut", [1, 2, 3], b"\0\0\1"),
    ]  # fmt: skip
    assert (cut.counts.cut, cut.counts.too_long, cut.counts.bad) == (1, 1, 0)
    skipped = read_dataset(path, rules=DatasetRules(max_tokens=3, too_long="skip"))
    assert [s.sample_id for s in skipped.samples] == ["fits"] and skipped.counts.too_long == 2


def test_duplicates_are_found_by_content(tmp_path: Path) -> None:
    records = [
        {"id": "a", "input_ids": [1, 2, 3]},
        {"id": "b", "input_ids": [1, 2, 3]},
        {"id": "c", "input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]},
        {"id": "a", "input_ids": [1, 2, 3]},
        {"id": "d", "input_ids": [1, 2, 3, 4]},
    ]
    path = as_jsonl(tmp_path, records)
    dataset = read_dataset(path, rules=DatasetRules(dedupe=True))
    assert [s.sample_id for s in dataset.samples] == ["a", "c", "d"] and dataset.counts.duplicates == 2
    shorter = read_dataset(path, rules=DatasetRules(dedupe=True, max_tokens=3))
    assert [s.sample_id for s in shorter.samples] == ["a", "c"]
    with pytest.raises(ExtractionError, match=r":4: id 'a' stands on line 1 already"):
        read_dataset(path)


def test_the_holdout_is_chosen_by_content(tmp_path: Path) -> None:
    records = [{"id": str(i), "input_ids": [i, i + 1, i * 7]} for i in range(2000)]
    rules = DatasetRules(holdout=parse_holdout("5%"))
    dataset = read_dataset(as_jsonl(tmp_path, records), rules=rules)
    held = {s.sample_id for s in dataset.samples if s.split == "holdout"}
    assert 60 < len(held) == dataset.counts.held_out < 140
    assert {s.split for s in dataset.samples} == {"train", "holdout"}
    random.Random(1).shuffle(records)
    again = read_dataset(as_jsonl(tmp_path, records[:1500]), rules=rules)
    kept = {record["id"] for record in records[:1500]}
    assert {s.sample_id for s in again.samples if s.split == "holdout"} == held & kept
    wider = read_dataset(as_jsonl(tmp_path, records), rules=DatasetRules(holdout=Holdout(100_000)))
    assert held < {s.sample_id for s in wider.samples if s.split == "holdout"}
    # The choice is part of what a store is: it must never change.
    assert [i for i in range(60) if Holdout(100_000).takes(i.to_bytes(8, "little"))] == HELD_OF_60
    assert all(s.split == "" for s in read_dataset(as_jsonl(tmp_path, records)).samples)


HELD_OF_60 = [1, 7, 25, 44]


@pytest.mark.parametrize("text", ["0", "0%", "100%", "1", "x", "-1%", "", "1e-3"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(UsageError, match="not a share"):
        parse_holdout(text)
    assert str(parse_holdout(" 1 %")) == str(parse_holdout("0.01")) == "1%" and str(parse_holdout("0.25%")) == "0.25%"


def test_a_dataset_that_is_sent_elsewhere_is_the_same_there(tmp_path: Path) -> None:
    records = [*openai(), {"id": "bad"}]
    rules = DatasetRules(on_bad="skip", holdout=Holdout(500_000), max_tokens=9)
    here = read_dataset(as_jsonl(tmp_path, records), Words(), rules)
    sent = tmp_path / "sent.jsonl"
    sent.write_bytes(b"".join(sent_lines(here)))
    there = read_dataset(sent)
    assert there.digest == here.digest and there.counts == here.counts and there.counts.bad == 1
    assert there.tokenizer == here.tokenizer and there.holdout == here.holdout
    assert [s.split for s in there.samples] == [s.split for s in here.samples]


def test_array_entries_are_the_same_in_any_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from auxtap.extraction.datasets import json_array

    entries = [{"a": 'ü"]}[{,\\🙂' * n, "b": [n, {"c": None}], "d": -1.5e-3} for n in range(30)]
    text = json.dumps(entries, ensure_ascii=False, indent=1).encode()
    for block in (1, 2, 7, 64, 1 << 20):
        monkeypatch.setattr(json_array, "_BLOCK_BYTES", block)
        assert list(array_entries(io.BytesIO(text))) == entries
    assert list(array_entries(io.BytesIO(b" [ ] "))) == []


# The peak since the program began; what getrusage says holds that of the process that was forked.
MEMORY = r"""
import re, sys
from pathlib import Path
from auxtap.extraction.datasets.reading import read_dataset
dataset = read_dataset(Path(sys.argv[1]))
assert len(dataset.samples) == int(sys.argv[2]) and dataset.samples[-1].n_tokens == int(sys.argv[3])
print(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("write", [as_jsonl, as_array, as_gzip, as_parquet, as_saved])
def test_memory_stays_flat(tmp_path: Path, write: Callable[..., Path]) -> None:
    """Eight times the tokens take no more memory than a few records do."""

    def peak_bytes(n_records: int, n_tokens: int) -> int:
        folder = tmp_path / f"{n_records}"
        folder.mkdir()
        path = write(folder, [{"input_ids": list(range(n, n + n_tokens))} for n in range(n_records)])
        command = [sys.executable, "-c", MEMORY, str(path), str(n_records), str(n_tokens)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) << 10

    few, many = peak_bytes(70, 10_000), peak_bytes(400, 10_000)
    # 3.3 million tokens more: 26 MB as int64, some 130 MB as Python's numbers.
    assert many - few < 13_000_000, (few, many)


def test_packages_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for write in (as_parquet, as_zstd, as_saved):
        path = write(tmp_path, pretokenized())
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "pyarrow", None)
            with pytest.raises(UsageError, match="needs pyarrow") as raised:
                read_dataset(path)
        assert raised.value.hint == "pip install 'auxtap[data]'"


def test_tokens_that_find_no_room_are_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    path = as_jsonl(tmp_path, [{"input_ids": list(range(100))}] * 300)
    # Every write to this device finds no room.
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: open("/dev/full", "w+b"))  # noqa: SIM115
    with pytest.raises(ExtractionError, match="tokens cannot be kept: No space left") as raised:
        read_dataset(path)
    assert raised.value.hint is not None and "TMPDIR" in raised.value.hint

    def refuse(**_: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(ExtractionError, match="tokens cannot be kept: No usable temporary directory"):
        read_dataset(path)


def test_a_long_reading_is_spoken_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from auxtap.commands.views.dataset_view import reading_progress

    path = as_jsonl(tmp_path, [{"input_ids": [1]}] * 300)
    seconds = iter(range(0, 1000, 3))
    console.err.cache_clear()
    read_dataset(path, observe=reading_progress(path, lambda: float(next(seconds))))
    console.err.cache_clear()
    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in said] == ["128 records", "256 records"]


def test_nothing_is_read_ahead(tmp_path: Path) -> None:
    path = as_jsonl(tmp_path, [{"input_ids": [1]}])
    with path.open("ab") as file:
        file.write(b"\xff\n")
    records = read_records(path)
    assert next(records).value == {"input_ids": [1]}
    assert next(records).fault == "malformed JSON: not UTF-8"


def test_the_place_of_a_token_that_the_model_has_not(tmp_path: Path) -> None:
    dataset: Dataset = read_dataset(as_parquet(tmp_path, [{"input_ids": [1]}, {"input_ids": [100]}]))
    dataset.check_vocabulary(101)
    with pytest.raises(ExtractionError, match=r"row 2: token id 100 is outside the model's vocabulary of 100"):
        dataset.check_vocabulary(100)
