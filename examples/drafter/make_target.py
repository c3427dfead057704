"""Train a tiny target model on text with structure, and write the two datasets that are extracted from it.

usage: make_target.py --like TINY_LLAMA --out DIR [--steps 700] [--train 192] [--heldout 64]

TINY_LLAMA is a folder with a tokenizer of bytes and a Llama's config.json; DIR gets `model/`, `train.jsonl` and
`heldout.jsonl`. Run it with a Python that has torch and transformers: an engine environment of auxtap's.
"""

import argparse
import itertools
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from corpus import documents
from transformers import LlamaConfig, LlamaForCausalLM

TARGET_SEED, TRAIN_SEED, HELDOUT_SEED = 1, 2, 3
BATCH, WARM_UP, RATE, IGNORED = 8, 50, 4e-3, -100


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (ids, labels), each [batch, longest], padding ignored."""
    source = documents(seed)
    while True:
        rows = [torch.tensor(ids) for ids in itertools.islice(source, BATCH)]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)
        yield ids, labels


def train(like: Path, steps: int) -> LlamaForCausalLM:
    """Train a model of the tiny one's shape from the beginning."""
    torch.manual_seed(TARGET_SEED)
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(like))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM_UP) * max(0.05, 1 - step / steps)
    )
    began = time.monotonic()
    for step, (ids, labels) in enumerate(itertools.islice(batches(TARGET_SEED), steps)):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f} nats a token, {time.monotonic() - began:.0f} s", flush=True)
    return model.eval()


def write_dataset(path: Path, seed: int, count: int) -> None:
    """Write `count` documents of a seed as a dataset of token ids."""
    with path.open("w") as file:
        for number, ids in enumerate(itertools.islice(documents(seed), count)):
            file.write(json.dumps({"id": f"{path.stem}-{number}", "input_ids": ids}) + "\n")


def main() -> None:
    """Train, save, and write both datasets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--like", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--train", type=int, default=192)
    parser.add_argument("--heldout", type=int, default=64)
    arguments = parser.parse_args()
    folder = arguments.out / "model"
    folder.mkdir(parents=True, exist_ok=True)
    for file in arguments.like.iterdir():
        if "token" in file.name or "template" in file.name:
            shutil.copy(file, folder / file.name)
    train(arguments.like, arguments.steps).save_pretrained(folder)
    write_dataset(arguments.out / "train.jsonl", TRAIN_SEED, arguments.train)
    write_dataset(arguments.out / "heldout.jsonl", HELDOUT_SEED, arguments.heldout)


if __name__ == "__main__":
    main()
