"""A sample is shown as a trainer will see it, and what a store says of its dataset."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

import auxtap
from auxtap.core.errors import ExtractionError, IntegrityError, UsageError
from auxtap.extraction.audit.integrity import check_store
from auxtap.extraction.audit.preview import find_runs, preview_sample
from auxtap.extraction.datasets.holdout import Holdout
from auxtap.extraction.datasets.reading import DatasetRules, TokenizerFacts, read_dataset
from auxtap.extraction.datasets.tokenizer import doubts_of_tokenizer, load_tokenizer
from auxtap.extraction.export.exporting import ExportJob, export_store
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.extraction.store.ledger import read_ledger
from auxtap.extraction.store.merge import merge_stores
from auxtap.extraction.store.store_manifest import read_manifest
from auxtap.tests.extraction.chat_models import KINDS, make_tokenizer

Maker = Callable[..., ExtractionJob]
TALK = [
    ("system", "be short"),
    ("user", "héllo 🙂"),
    ("assistant", "yes 🙂"),
    ("user", "and?"),
    ("assistant", "The answer"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer's folder."""
    make_tokenizer("bytes", KINDS[0].text).save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    turns = [{"role": role, "content": text} for role, text in TALK]
    path = tmp_path / "talk.jsonl"
    lines = [{"id": "first", "messages": turns[1:3]}, {"id": "second", "messages": turns}, {"id": "bad"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    code = (
        "import sys; from auxtap.cli import run; code = run(sys.argv[1:])\n"
        "print('HEAVY', [name for name in ('torch', 'httpx') if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.mark.slow
def test_each_state_stands_beside_what_it_predicts(dataset: Path, folder: Path) -> None:
    result = run("preview", dataset, "--tokenizer", folder, "--id", "second", "--json")
    assert result.returncode == 0, result.stderr
    assert "HEAVY []" in result.stderr
    shown = json.loads(result.stdout)
    sample = read_dataset(dataset, load_tokenizer(folder), DatasetRules(on_bad="skip")).samples[1]
    rows = shown["rows"]
    assert [row["token"]["token_id"] for row in rows] == sample.token_ids()
    assert [row["token"]["trained"] for row in rows] == [bool(entry) for entry in sample.loss_mask]
    for position, row in enumerate(rows):
        assert row["token"]["position"] == position
        for ahead, name in ((1, "predicts"), (2, "drafts")):
            wanted = rows[position + ahead]["token"] if position + ahead < len(rows) else None
            assert row[name] == wanted
    assert [run["text"] for run in shown["runs"]] == ["yes 🙂<|im_end|>", "The answer<|im_end|>"]
    assert shown["n_trained"] == sum(sample.loss_mask) and shown["sample_id"] == "second"
    assert "".join(row["token"]["text"] for row in rows[-3:]) == " answer<|im_end|>\n"


@pytest.mark.slow
def test_it_is_plain_when_piped_and_coloured_on_a_terminal(dataset: Path, folder: Path) -> None:
    result = run("preview", dataset, "--tokenizer", folder, "--index", 1)
    assert "\x1b[" not in result.stdout and "'yes 🙂<|im_end|>'" in result.stdout
    lines = result.stdout.splitlines()
    (row,) = [line for line in lines if "'assistant'" in line.partition("  * ")[0] and "'yes'" in line]
    # The state of the last token that is not trained on predicts the one behind it, and drafts the first that is.
    assert row.split()[2] == "'assistant'" and row.split()[4] == "'\\n'" and row.split()[5] == "*"
    assert any(line.strip() == "..." for line in lines)
    everything = run("preview", dataset, "--tokenizer", folder, "--index", 1, "--all").stdout
    assert not any(line.strip() == "..." for line in everything.splitlines())
    coloured = run("preview", dataset, "--tokenizer", folder, FORCE_COLOR="1")
    assert "\x1b[1;32m* " in coloured.stdout, coloured


def test_samples_that_cannot_be_shown(dataset: Path, folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder)
    with pytest.raises(ExtractionError, match="has no record 'nobody'") as raised:
        preview_sample(dataset, tokenizer, DatasetRules(), sample_id="nobody")
    assert raised.value.hint == "it has 3 records"
    with pytest.raises(ExtractionError, match="has no record 3, counted from 0"):
        preview_sample(dataset, tokenizer, DatasetRules(), index=3)
    with pytest.raises(ExtractionError, match=r"talk\.jsonl:3: has neither turns nor"):
        preview_sample(dataset, tokenizer, DatasetRules(), index=2)
    with pytest.raises(UsageError, match="conversations need a tokenizer"):
        preview_sample(dataset, None, DatasetRules())
    with pytest.raises(ExtractionError, match="is left out: it is too long"):
        preview_sample(dataset, tokenizer, DatasetRules(max_tokens=5, too_long="skip"))
    make_tokenizer("bytes", KINDS[0].text).save_pretrained(tmp_path / "bare")
    (tmp_path / "bare" / "chat_template.jinja").unlink()
    with pytest.raises(UsageError, match="no chat template"):
        preview_sample(dataset, load_tokenizer(tmp_path / "bare", need_template=False), DatasetRules())


def test_ids_are_shown_without_a_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "ids.jsonl"
    path.write_text('{"input_ids": [5, 6, 7, 8], "loss_mask": [0, 1, 1, 0]}\n')
    shown = preview_sample(path, None, DatasetRules())
    assert [(run.first, run.last, run.text) for run in shown.runs] == [(1, 2, "")]
    result = run("preview", path)
    assert result.returncode == 0 and "trained 1 to 2  2 tokens" in result.stdout


@pytest.mark.parametrize(("mask", "runs"), [
    (b"", []), (b"\0\0", []), (b"\1", [(0, 0)]), (b"\1\1\0\1", [(0, 1), (3, 3)]), (b"\0\1\1", [(1, 2)]),
])  # fmt: skip
def test_runs(mask: bytes, runs: list[tuple[int, int]]) -> None:
    assert list(find_runs(mask)) == runs


def test_a_store_is_shown_too(make_job: Maker, dataset: Path, folder: Path, tmp_path: Path) -> None:
    make_tokenizer("metaspace-bpe", KINDS[0].text).save_pretrained(tmp_path / "other")
    mine, other = load_tokenizer(folder), load_tokenizer(tmp_path / "other")
    samples = make_job(5).dataset
    job = make_job(dataset=replace(samples, tokenizer=mine.facts))
    run_extraction(job)
    shown = preview_sample(job.store, mine, DatasetRules(), sample_id="s/4")
    assert [row.token.token_id for row in shown.rows] == samples.samples[4].token_ids()
    assert [row.token.trained for row in shown.rows] == [bool(entry) for entry in samples.samples[4].loss_mask]
    assert not shown.warning and preview_sample(job.store, None, DatasetRules(), index=4).sample_id == "s/4"
    assert "made with another tokenizer" in preview_sample(job.store, other, DatasetRules()).warning
    with pytest.raises(ExtractionError, match="holds no sample 'nobody'"):
        preview_sample(job.store, mine, DatasetRules(), sample_id="nobody")


def test_a_store_keeps_its_splits_and_what_was_left_out(make_job: Maker, write_dataset: Any, tmp_path: Path) -> None:
    path = write_dataset(40)
    with path.open("a") as file:
        file.write('{"id": "bad"}\n{"id": "again", "input_ids": [0]}\n')
    rules = DatasetRules(on_bad="skip", dedupe=True, holdout=Holdout(300_000))
    dataset = read_dataset(path, rules=rules)
    job = make_job(dataset=dataset)
    assert run_extraction(job).complete
    facts = read_manifest(job.store / "manifest.json").dataset
    assert facts.holdout == "30%" and facts.counts["bad"] == 1 and facts.counts["held_out"] == dataset.counts.held_out
    held = {sample.sample_id for sample in dataset.samples if sample.split == "holdout"}
    assert 3 < len(held) < 25
    assert {s.sample_id for s in auxtap.open_store(job.store, split="holdout")} == held
    train = auxtap.open_store(job.store, "train")
    assert len(train) == len(dataset.samples) - len(held) and {s.split for s in train} == {"train"}
    assert len(auxtap.open_store(job.store)) == len(dataset.samples)
    with pytest.raises(ExtractionError, match="holdout: 30%, now \\(none\\)"):
        run_extraction(make_job(dataset=read_dataset(path, rules=replace(rules, holdout=None))))
    shards = []
    for number in (1, 2):
        from auxtap.extraction.run.job import Shard

        shards.append(tmp_path / f"shard{number}")
        run_extraction(make_job(dataset=dataset, store=shards[-1], shard=Shard(number, 2)))
    merge_stores(tmp_path / "merged", shards)
    assert {s.sample_id for s in auxtap.open_store(tmp_path / "merged", split="holdout")} == held


def test_a_split_that_the_tokens_do_not_bear_out_is_found(make_job: Maker, write_dataset: Any) -> None:
    dataset = read_dataset(write_dataset(12), rules=DatasetRules(holdout=Holdout(300_000)))
    job = make_job(dataset=dataset)
    run_extraction(job)
    assert check_store(job.store).findings == ()
    ledger = job.store / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"split":"train"', '"split":"holdout"', 1))
    (finding,) = check_store(job.store).findings
    assert "is in split 'holdout', by its tokens it is in 'train'" in finding.what
    manifest = job.store / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"30%"', '"a third"'))
    with pytest.raises(IntegrityError, match="holdout is 'a third', no share"):
        check_store(job.store)


def test_a_split_is_exported_by_itself(make_job: Maker, write_dataset: Any, tmp_path: Path) -> None:
    dataset = read_dataset(write_dataset(40), rules=DatasetRules(holdout=Holdout(300_000)))
    job = make_job(dataset=dataset)
    run_extraction(job)
    for split in ("train", "holdout"):
        export = ExportJob(job.store, "safetensors", tmp_path / split, split=split)
        summary = export_store(export)
        wanted = {f"{s.index:08d}.safetensors" for s in dataset.samples if s.split == split}
        assert {path.name for path in (tmp_path / split / "samples").iterdir()} == wanted
        assert (summary.n_samples, summary.missing) == (len(wanted), 0) and wanted
        with pytest.raises(ExtractionError, match=rf"split '{split}', now ''"):
            export_store(replace(export, split=""))
    with pytest.raises(ExtractionError, match="no sample of split 'test'"):
        export_store(ExportJob(job.store, "safetensors", tmp_path / "test", split="test"))
    run_extraction(make_job(2, store=tmp_path / "plain"))
    with pytest.raises(UsageError, match="has no splits"):
        export_store(ExportJob(tmp_path / "plain", "safetensors", tmp_path / "x", split="train"))


@pytest.mark.slow
def test_conversations_are_extracted_as_a_person_asks_for_it(
    tmp_path: Path, server: Any, folder: Path, write_dataset: Any
) -> None:
    """Parquet of ShareGPT turns, through the command line, into a store; its rules stand in the manifest."""
    talks = [[{"from": "human", "value": str(i % 9)}, {"from": "gpt", "value": "a" * (i % 5)}] for i in range(60)]
    bad = [{"from": "gpt", "value": "x"}]
    path = tmp_path / "talks.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([{"conversations": talk} for talk in [*talks, bad]]), path)
    # The fake server's model knows a hundred ids only; at twelve tokens three and four letters are the same.
    where = ["--server", server.url, "--spool", server.tap.spool, "--out", tmp_path / "store", "--canary", 0]
    rules = ["--on-bad", "skip", "--dedupe", "--holdout", "20%", "--max-tokens", 12]
    refused = run("extract", path, "--tokenizer", folder, *rules, *where)
    assert refused.returncode == 7
    assert re.search(
        r"row 1: token id \d+ is outside the model's vocabulary of 100; the dataset's tokenizer has \d+ ids",
        refused.stderr,
    )
    plan = ["--dry-run", "--hidden-size", 8, "--layers", "3,5", "--json"]
    planned = json.loads(run("extract", path, "--tokenizer", folder, *rules, *plan).stdout)
    assert (planned["n_samples"], planned["bad_lines"], planned["duplicates"]) == (36, 1, 24)
    assert planned["cut"] > 0 and 0 < planned["held_out"] < 36 and "row 61: the roles" in planned["first_bad"][0]
    stopped = run("extract", path, "--tokenizer", folder, *where)
    assert stopped.returncode == 7 and "talks.parquet: row 61: the roles are in a wrong order" in stopped.stderr
    assert "--on-bad skip" in stopped.stderr
    ids = tmp_path / "ids.jsonl"
    ids.write_text(write_dataset(30).read_text() + '{"input_ids": [0]}\n{"input_ids": []}\n')
    done = run("extract", ids, *rules, *where)
    assert done.returncode == 0, done.stderr
    assert (
        "1 of 32 records are bad and left out, the first: " in done.stderr and "held out (20% asked for)" in done.stderr
    )
    counts = read_manifest(tmp_path / "store" / "manifest.json").dataset.counts
    assert counts["bad"] == 1 and counts["records"] == 32 and counts["cut"] > 0


def test_a_store_without_splits_has_none(make_job: Maker) -> None:
    job = make_job(2)
    run_extraction(job)
    with pytest.raises(UsageError, match="has no splits"):
        auxtap.open_store(job.store, split="holdout")
    lines = read_ledger(job.store / "ledger.jsonl").lines
    assert all(line.split == "" and line.seconds > 0 for line in lines)
    assert '"split"' not in (job.store / "ledger.jsonl").read_text()


def test_another_tokenizer_is_named_when_a_store_is_gone_on_with(make_job: Maker) -> None:
    dataset = make_job(3).dataset
    one, two = TokenizerFacts("sha256:one", 90), TokenizerFacts("sha256:two", 90)
    run_extraction(make_job(dataset=replace(dataset, tokenizer=one)))
    # The same tokens are the same dataset, whoever made them.
    assert run_extraction(make_job(dataset=replace(dataset, tokenizer=two))).already_stored == 3
    other = replace(dataset, tokenizer=two, digest="sha256:of-other-tokens")
    with pytest.raises(ExtractionError, match="tokenizer: sha256:one, now sha256:two"):
        run_extraction(make_job(dataset=other))


def test_a_tokenizer_that_is_not_the_models_is_doubted(folder: Path, tmp_path: Path, make_job: Maker) -> None:
    facts = load_tokenizer(folder).facts
    assert facts is not None
    assert list(doubts_of_tokenizer(facts, folder, facts.n_ids)) == []
    assert list(doubts_of_tokenizer(facts, tmp_path / "nowhere", facts.n_ids)) == []
    assert list(doubts_of_tokenizer(None, folder, 1)) == []
    (doubt,) = doubts_of_tokenizer(facts, folder, facts.n_ids - 1)
    assert "embeddings for" in doubt
    make_tokenizer("metaspace-bpe", KINDS[0].text).save_pretrained(tmp_path / "other")
    (doubt,) = doubts_of_tokenizer(facts, tmp_path / "other", facts.n_ids)
    assert "its files differ" in doubt
    told: list[str | None] = []
    job = make_job(dataset=replace(make_job(1).dataset, tokenizer=facts))
    run_extraction(job, lambda progress: told.append(progress.message))
    assert any("embeddings for 100 only" in text for text in told if text)
