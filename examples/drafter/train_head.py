"""Train draft heads on a store and on the same store with a fault, and judge each on states from the server.

usage: train_head.py --model DIR --train STORE --heldout STORE [--seeds 0,1,2] [--epochs 12] [--faults A,B] [--json]

Both stores come from a server with `--final both`. A head is judged as it would be used: on the held-out store's states
as they are. `agreement` is how often its likeliest token is the target's, `acceptance` the chance that the target
takes its draft when sampling: the sum over the vocabulary of min(target, draft).
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from head import DraftHead
from safetensors.torch import load_file
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

BATCH, RATE = 16, 2e-3
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Target:
    """What of the target a head needs: both [vocabulary, hidden], and the captured layers."""

    embedding: torch.Tensor
    output: torch.Tensor
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """One document: `ids` [tokens], `states` [tokens, layers x hidden], the target's logits [tokens, vocabulary]."""

    ids: torch.Tensor
    states: torch.Tensor
    logits: torch.Tensor


@dataclass(frozen=True)
class Score:
    """One head on the held-out store."""

    fault: str
    seed: int
    agreement: float
    acceptance: float
    seconds: float


def nothing(tensors: Tensors, layers: tuple[int, ...]) -> Tensors:
    """The store as it is."""
    return tensors


def layers_swapped(tensors: Tensors, layers: tuple[int, ...]) -> Tensors:
    """The lowest and the highest layer in each other's place."""
    first, last = f"hidden.{layers[0]}", f"hidden.{layers[-1]}"
    return {**tensors, first: tensors[last], last: tensors[first]}


def rows_shifted(tensors: Tensors, layers: tuple[int, ...]) -> Tensors:
    """Every state in the row of the token behind its own."""
    kept = {"input_ids": tensors["input_ids"], "loss_mask": tensors["loss_mask"]}
    return {name: torch.roll(tensor, 1, 0) for name, tensor in tensors.items()} | kept


def layers_shifted(tensors: Tensors, layers: tuple[int, ...]) -> Tensors:
    """The captured layers a row late, the final state in its place: states that lag behind their tokens."""
    late = {f"hidden.{layer}": torch.roll(tensors[f"hidden.{layer}"], 1, 0) for layer in layers}
    return {**tensors, **late}


def final_before_norm(tensors: Tensors, layers: tuple[int, ...]) -> Tensors:
    """The final state before the norm where the one after it belongs."""
    return {**tensors, "final": tensors["final_prenorm"]}


FAULTS: dict[str, Callable[[Tensors, tuple[int, ...]], Tensors]] = {
    each.__name__: each for each in (nothing, layers_swapped, rows_shifted, layers_shifted, final_before_norm)
}


def read_target(model: Path, store: Path) -> Target:
    """Read the target's embedding and output head, and which layers a store has."""
    weights: Tensors = {}
    for file in sorted(model.glob("*.safetensors")):
        weights |= load_file(file)
    layers = json.loads((store / "manifest.json").read_text())["layers"]
    names = tuple(layer["capture_index"] for layer in layers)
    return Target(weights["model.embed_tokens.weight"].float(), weights["lm_head.weight"].float(), names)


def read_samples(store: Path, target: Target, fault: str) -> list[Sample]:
    """Read every stored sample, spoiled as `fault` says."""
    samples = []
    for text in (store / "ledger.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line["fate"] != "stored":
            continue
        tensors: Tensors = {}
        for part in line["parts"]:
            tensors |= load_file(store / part["file"])
        tensors = FAULTS[fault](tensors, target.layers)
        states = torch.cat([tensors[f"hidden.{layer}"] for layer in target.layers], dim=-1).float()
        logits = tensors["final"].float() @ target.output.T
        samples.append(Sample(tensors["input_ids"], states, logits))
    return samples


def collate(samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return states, following tokens, the target's distributions and a mask, row t of all for the draft at t."""
    states = pad_sequence([sample.states[:-1] for sample in samples], batch_first=True)
    following = pad_sequence([sample.ids[1:] for sample in samples], batch_first=True)
    wanted = pad_sequence([sample.logits[1:].softmax(-1) for sample in samples], batch_first=True)
    mask = pad_sequence([torch.ones(len(sample.ids) - 1) for sample in samples], batch_first=True)
    return states, following, wanted, mask


def train_head(samples: list[Sample], target: Target, seed: int, epochs: int) -> DraftHead:
    """Train a head on the target's distributions."""
    torch.manual_seed(seed)
    head = DraftHead(target.embedding, target.output, len(target.layers))
    steps = epochs * (len(samples) // BATCH)
    optimizer = torch.optim.AdamW(head.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=max(steps, 2), pct_start=0.1)
    for _ in range(epochs):
        order = torch.randperm(len(samples)).tolist()
        for begin in range(0, len(samples) - BATCH + 1, BATCH):
            states, following, wanted, mask = collate([samples[i] for i in order[begin : begin + BATCH]])
            log_draft = functional.log_softmax(head(states, following), -1)
            loss = -((wanted * log_draft).sum(-1) * mask).sum() / mask.sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return head.eval()


@torch.no_grad()
def judge(head: DraftHead, heldout: list[Sample]) -> tuple[float, float]:
    """Return agreement and acceptance over all drafted rows."""
    agreed = accepted = rows = 0.0
    for begin in range(0, len(heldout), BATCH):
        states, following, wanted, mask = collate(heldout[begin : begin + BATCH])
        draft = head(states, following).softmax(-1)
        agreed += float(((draft.argmax(-1) == wanted.argmax(-1)) * mask).sum())
        accepted += float((torch.minimum(draft, wanted).sum(-1) * mask).sum())
        rows += float(mask.sum())
    return agreed / rows, accepted / rows


def summarize(scores: list[Score]) -> list[dict[str, Any]]:
    """Return for each fault mean and spread (standard deviation over seeds), and the gap to the right store, seed by
    seed."""
    right = {score.seed: score for score in scores if score.fault == nothing.__name__}
    table = []
    for fault in dict.fromkeys(score.fault for score in scores):
        row: dict[str, Any] = {"fault": fault}
        mine = [score for score in scores if score.fault == fault]
        for measure in ("agreement", "acceptance"):
            values = [getattr(score, measure) for score in mine]
            gaps = [getattr(right[score.seed], measure) - getattr(score, measure) for score in mine]
            row |= {measure: statistics.fmean(values), f"{measure}_spread": spread(values)}
            row |= {f"{measure}_gap": statistics.fmean(gaps), f"{measure}_gap_spread": spread(gaps)}
        table.append(row)
    return table


def spread(values: list[float]) -> float:
    """Return the standard deviation, 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def main() -> None:
    """Train and judge one head for each fault and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    target = read_target(arguments.model, arguments.train)
    heldout = read_samples(arguments.heldout, target, nothing.__name__)
    scores: list[Score] = []
    for fault in arguments.faults.split(","):
        samples = read_samples(arguments.train, target, fault)
        for seed in map(int, arguments.seeds.split(",")):
            began = time.monotonic()
            agreement, acceptance = judge(train_head(samples, target, seed, arguments.epochs), heldout)
            scores.append(Score(fault, seed, agreement, acceptance, time.monotonic() - began))
            if not arguments.json:
                print(f"{fault} seed {seed}: agreement {agreement:.3f}, acceptance {acceptance:.3f}", flush=True)
    table = summarize(scores)
    if arguments.json:
        print(json.dumps({"scores": [asdict(score) for score in scores], "table": table}))
        return
    for row in table:
        print(
            f"{row['fault']:18} agreement {row['agreement']:.3f} +- {row['agreement_spread']:.3f} "
            f"(gap {row['agreement_gap']:+.3f} +- {row['agreement_gap_spread']:.3f})  "
            f"acceptance {row['acceptance']:.3f} +- {row['acceptance_spread']:.3f} "
            f"(gap {row['acceptance_gap']:+.3f} +- {row['acceptance_gap_spread']:.3f})"
        )


if __name__ == "__main__":
    main()
