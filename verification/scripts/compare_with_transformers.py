"""Compare a store with transformers; run by the Python of an engine environment, never imported by auxtap.

Usage: compare_with_transformers.py (--pair STORE MODEL)...   (prints one line of JSON for each pair)

The reference is transformers' own code in float32 with eager attention, fed one sample at a time: no batching, no
chunks, no cache and no stand-ins. `hidden.<i>` is held against `hidden_states[i]`, `final` against the last of them,
which transformers returns after the final norm, and `final_prenorm` against what that norm was given.

An architecture that transformers loads by itself needs nothing here; a wrapper around a text model is one function
decorated with `@loads("ArchitectureName")`.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from diagnosis import Prompt, diagnose, look_inside
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV3ForCausalLM, PreTrainedModel

HIDDEN_PREFIX, FINAL, FINAL_PRENORM, INPUT_IDS = "hidden.", "final", "final_prenorm", "input_ids"
NOT_STATES = (INPUT_IDS, "loss_mask")
# A state that is further off than this gets a diagnosis.
SUSPICIOUS = 5e-6


class NoReferenceError(Exception):
    """A store cannot be held against transformers; says why."""


Loader = Callable[[Path, dict[str, Any]], PreTrainedModel]
LOADERS: dict[str, Loader] = {}


def loads(architecture: str) -> Callable[[Loader], Loader]:
    """Register a function that loads the text model of `architecture`."""

    def register(loader: Loader) -> Loader:
        LOADERS[architecture] = loader
        return loader

    return register


@loads("KimiK25ForConditionalGeneration")
def load_kimi_k25(folder: Path, config: dict[str, Any]) -> PreTrainedModel:
    """Load the DeepSeek-V3 that Kimi-K2.5 wraps as `language_model.`."""
    prefix = "language_model."
    weights = {
        name.removeprefix(prefix): tensor
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
        if name.startswith(prefix)
    }
    # Through a folder of its own, because transformers 5 joins the experts' weights while it loads.
    with tempfile.TemporaryDirectory() as text_only:
        save_file(weights, Path(text_only, "model.safetensors"), metadata={"format": "pt"})
        Path(text_only, "config.json").write_text(json.dumps(config["text_config"]))
        return load_whole(DeepseekV3ForCausalLM, Path(text_only))


def load_whole(kind: Any, folder: Path) -> PreTrainedModel:
    """Load a model none of whose weights is missing or left over."""
    model: PreTrainedModel
    model, info = kind.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        raise NoReferenceError(f"the weights of {folder} do not fit the reference: {info}")
    return model


def load_reference(folder: Path) -> PreTrainedModel:
    """Load the model of `folder` in float32 with eager attention."""
    config = json.loads((folder / "config.json").read_bytes())
    loader = LOADERS.get(config["architectures"][0])
    if loader is not None:
        return loader(folder, config).eval()
    return load_whole(AutoModelForCausalLM, folder).eval()


@dataclass
class StateErrors:
    """The largest errors of one state so far; an error that is no number counts as infinite."""

    state: str
    rows: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    worst_sample: str = ""
    diagnosis: str = ""

    def add(self, sample: str, found: torch.Tensor, expected: torch.Tensor) -> None:
        """Compare one sample's rows, both [tokens, hidden]."""
        if found.shape != expected.shape:
            raise NoReferenceError(
                f"{sample}: {self.state} has shape {list(found.shape)}, the reference {list(expected.shape)}"
            )
        difference = found.double() - expected.double()
        relative = number(difference.norm() / expected.double().norm())
        self.rows += found.shape[0]
        self.max_abs = max(self.max_abs, number(difference.abs().max()))
        if relative >= self.max_rel:
            self.max_rel, self.worst_sample = relative, sample


def number(value: torch.Tensor) -> float:
    """Return a tensor's only value, infinity when it is not a number."""
    result = float(value.item())
    return math.inf if math.isnan(result) else result


def stored_samples(store: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (id, part files) of every sample that the ledger says is stored, in the order of the dataset."""
    lines = [json.loads(line) for line in (store / "ledger.jsonl").read_text().splitlines() if line.strip()]
    last = {line["id"]: line for line in lines}
    for line in sorted(last.values(), key=lambda line: int(line["index"])):
        if line["fate"] == "stored":
            yield line["id"], [part["file"] for part in line["parts"]]


class Reference:
    """One model's states, computed once for each prompt."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._states: dict[tuple[int, ...], list[torch.Tensor]] = {}
        self._before_norm: dict[tuple[int, ...], torch.Tensor] = {}

    def states(self, ids: torch.Tensor) -> list[torch.Tensor]:
        """Return `hidden_states` of a prompt `ids` [tokens], each [tokens, hidden]."""
        key = tuple(ids.tolist())
        if key not in self._states:
            with torch.no_grad():
                output = self.model(input_ids=ids[None], output_hidden_states=True, use_cache=False)
            self._states[key] = [state[0] for state in output.hidden_states]
        return self._states[key]

    def state(self, ids: torch.Tensor, name: str) -> torch.Tensor:
        """Return what the store's tensor `name` must hold for a prompt, [tokens, hidden]."""
        if name == FINAL_PRENORM:
            key = tuple(ids.tolist())
            if key not in self._before_norm:
                self._before_norm[key] = look_inside(self.model, ids).before_norm
            return self._before_norm[key]
        states = self.states(ids)
        return states[len(states) - 1 if name == FINAL else int(name.removeprefix(HIDDEN_PREFIX))]


def compare_sample(
    reference: Reference, sample: str, parts: list[dict[str, torch.Tensor]], errors: dict[str, StateErrors]
) -> None:
    """Add one sample's errors to `errors`, which gets an entry for every new state."""
    ids = parts[0][INPUT_IDS]
    if not all(torch.equal(part[INPUT_IDS], ids) for part in parts):
        raise NoReferenceError(f"{sample}: its parts disagree about input_ids")
    for part in parts:
        for name, found in part.items():
            if name in NOT_STATES:
                continue
            errors.setdefault(name, StateErrors(name)).add(sample, found, reference.state(ids, name))


def state_order(state: StateErrors) -> tuple[int, int]:
    """Order captured states by layer, the final states last."""
    if state.state in (FINAL, FINAL_PRENORM):
        return (1, len(state.state))
    return (0, int(state.state.removeprefix(HIDDEN_PREFIX)))


def compare_store(store: Path, reference: Reference) -> dict[str, Any]:
    """Return the largest errors of every state of a store."""
    errors: dict[str, StateErrors] = {}
    samples, tokens = 0, 0
    for sample, files in stored_samples(store):
        parts = [load_file(store / file) for file in files]
        compare_sample(reference, sample, parts, errors)
        samples += 1
        tokens += int(parts[0][INPUT_IDS].shape[0])
    for state in errors.values():
        if not state.max_rel <= SUSPICIOUS:
            state.diagnosis = diagnose_state(store, reference, state)
    states = [asdict(state) for state in sorted(errors.values(), key=state_order)]
    return {"samples": samples, "tokens": tokens, "states": states}


def diagnose_state(store: Path, reference: Reference, state: StateErrors) -> str:
    """Say what the worst sample's rows of a state are instead."""
    prompts: list[Prompt] = []
    worst: tuple[Prompt, torch.Tensor, torch.Tensor] | None = None
    for sample, files in stored_samples(store):
        tensors = {name: tensor for file in files for name, tensor in load_file(store / file).items()}
        prompt = Prompt(sample, reference.states(tensors[INPUT_IDS]))
        if sample == state.worst_sample:
            worst = (prompt, tensors[state.state], tensors[INPUT_IDS])
        else:
            prompts.append(prompt)
    assert worst is not None, "the worst sample is one of the store's"
    prompt, found, ids = worst
    return f"{prompt.sample}: {diagnose(state.state, found, prompt, look_inside(reference.model, ids), prompts)}"


def main() -> None:
    """Print the errors of every store, or why there are none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", type=Path, nargs=2, action="append", required=True, metavar=("STORE", "MODEL"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    references: dict[Path, Reference] = {}
    for store, folder in arguments.pair:
        try:
            if folder not in references:
                references[folder] = Reference(load_reference(folder))
            record = compare_store(store, references[folder])
        except Exception as error:
            known = isinstance(error, NoReferenceError)
            record = {"problem": str(error) if known else f"{type(error).__name__}: {error}"}
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
