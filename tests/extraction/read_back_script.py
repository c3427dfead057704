"""Read an export with the trainer's own package and hold every tensor against the store; knows nothing of auxtap.

Runs in the trainers' environment. usage: read_back_script.py STORE EXPORT FORMAT; its last line is a JSON object,
{check: "ok" or what went wrong}.
"""

import json
import sys
import traceback
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file

warnings.filterwarnings("ignore")
STORE, EXPORT = Path(sys.argv[1]), Path(sys.argv[2])
MAX_LEN = 64


def stored_samples():
    """Return (index, id, tensors) of every stored sample, read without auxtap."""
    lines = [json.loads(line) for line in (STORE / "ledger.jsonl").read_text().splitlines()]
    last = {line["id"]: line for line in lines}
    samples = []
    for line in sorted(last.values(), key=lambda line: line["index"]):
        if line["fate"] == "stored":
            tensors: dict[str, torch.Tensor] = {}
            for part in line["parts"]:
                tensors |= load_file(STORE / part["file"])
            samples.append((line["index"], line["id"], tensors))
    return samples


SAMPLES = stored_samples()
LAYERS = [layer["capture_index"] for layer in json.loads((STORE / "manifest.json").read_text())["layers"]]
VOCAB = json.loads((STORE / "manifest.json").read_text())["model"]["vocab_size"]


def aux(tensors):
    """Return the layers' states side by side, ascending: [tokens, layers x hidden]."""
    return torch.cat([tensors[f"hidden.{layer}"] for layer in sorted(LAYERS)], dim=-1)


def mask(tensors):
    return tensors["loss_mask"].long()


def same(found, expected, what):
    """Values, shape and dtype, to the bit."""
    assert found.dtype == expected.dtype, f"{what} is {found.dtype}, not {expected.dtype}"
    assert found.shape == expected.shape, f"{what} is {list(found.shape)}, not {list(expected.shape)}"
    assert torch.equal(found, expected), f"{what} has other values"


def specforge_files():
    from specforge.runtime.data_plane.feature_store import load_feature_file
    from specforge.runtime.data_plane.offline_reader import OfflineManifestReader

    refs = OfflineManifestReader(str(EXPORT), validate_files=True).read()
    assert len(refs) == len(SAMPLES), f"{len(refs)} files of {len(SAMPLES)}"
    paths = {Path(ref.feature_store_uri.removeprefix("file://")).stem: ref for ref in refs}
    for index, _, tensors in SAMPLES:
        ref = paths[f"data_{index}"]
        path = ref.feature_store_uri.removeprefix("file://")
        group = index // 2000 * 2000
        assert Path(path).parent.name == f"rows_{group}-{group + 2000}", path
        assert ref.num_tokens == len(tensors["input_ids"])
        raw = load_feature_file(path)
        assert sorted(raw) == ["aux_hidden_state", "hidden_state", "input_ids", "loss_mask"], sorted(raw)
        same(raw["input_ids"], tensors["input_ids"], "input_ids")
        same(raw["loss_mask"], mask(tensors), "loss_mask")
        same(raw["aux_hidden_state"], aux(tensors)[None], "aux_hidden_state")
        same(raw["hidden_state"], tensors["final"][None], "hidden_state")


def specforge_training_view():
    from specforge.algorithms.eagle3.data import normalize_offline_sample
    from specforge.data.preprocessing import OfflineEagle3Dataset

    for index, _, tensors in SAMPLES:
        path = next(EXPORT.rglob(f"data_{index}.ckpt"))
        expected = mask(tensors)[None].clone()
        expected[0, -1] = 0
        raw = torch.load(path, weights_only=True)
        for item in (normalize_offline_sample(raw, MAX_LEN), OfflineEagle3Dataset([str(path)], max_len=MAX_LEN)[0]):
            same(item["input_ids"], tensors["input_ids"][None], "input_ids")
            same(item["loss_mask"], expected, "loss_mask")
            same(item["hidden_state"], aux(tensors)[None], "hidden_state")
            same(item["target"], tensors["final"][None], "target")


def specforge_vocabulary():
    from collections import Counter

    from specforge.data.preprocessing import process_token_dict_to_mappings
    from specforge.training.vocab_mapping import count_effective_feature_tokens

    found = torch.load(EXPORT / "vocab_mapping" / "vocab_mapping.pt", weights_only=True)
    counts = count_effective_feature_tokens(str(EXPORT), target_vocab_size=VOCAB)
    # Theirs leaves ties to the order in which tokens were met; ours go to the smaller token.
    ordered = Counter({token: counts[token] for token in sorted(counts)})
    d2t, t2d = process_token_dict_to_mappings(ordered, len(found["d2t"]), VOCAB)
    same(found["d2t"], d2t, "d2t")
    same(found["t2d"], t2d, "t2d")
    assert int(t2d.sum()) == len(d2t)


def speculators_items():
    from hs_connectors import FileTransfer
    from speculators.data_generation.offline import check_hidden_states
    from speculators.models.eagle3.data import shift_batch
    from speculators.train.data import ArrowDataset, CollateFn

    data = ArrowDataset(MAX_LEN, EXPORT, transfer=FileTransfer(EXPORT / "hidden_states"), on_missing="raise")
    assert len(data) == len(SAMPLES)
    assert data.approx_lengths == [len(tensors["input_ids"]) for _, _, tensors in SAMPLES]
    for row, (_, _, tensors) in enumerate(SAMPLES):
        raw = load_file(EXPORT / "hidden_states" / f"hs_{row}.safetensors")
        check_hidden_states(raw, tensors["input_ids"].tolist())
        slots = [*(tensors[f"hidden.{layer}"] for layer in sorted(LAYERS)), tensors["final_prenorm"]]
        same(raw["hidden_states"], torch.stack(slots, dim=1), "hidden_states of the file")
        item = data[row]
        same(item["input_ids"], tensors["input_ids"], "input_ids")
        same(item["loss_mask"], mask(tensors), "loss_mask")
        same(item["hidden_states"], aux(tensors), "hidden_states")
        same(item["verifier_last_hidden_states"], tensors["final_prenorm"], "verifier_last_hidden_states")
        width = tensors["final_prenorm"].shape[1]
        collate = CollateFn(MAX_LEN, width, len(LAYERS), dtype=raw["hidden_states"].dtype, preprocess=shift_batch)
        batch, n = collate([item]), len(tensors["input_ids"]) - 1
        same(batch["input_ids"][0, :n], tensors["input_ids"][1:], "shifted input_ids")
        same(batch["loss_mask"][0, :n], mask(tensors)[1:], "shifted loss_mask")
        same(batch["hidden_states"][0, :n], aux(tensors)[:-1], "shifted hidden_states")
        last = batch["verifier_last_hidden_states"][0, :n]
        same(last, tensors["final_prenorm"][1:], "shifted verifier_last_hidden_states")


def speculators_vocabulary():
    from collections import Counter

    from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

    counts: Counter[int] = Counter()
    for _, _, tensors in SAMPLES:
        counts.update(tensors["input_ids"][tensors["loss_mask"].bool()].tolist())
    found = torch.load(EXPORT / "token_freq.pt", weights_only=True)
    assert found == dict(counts)
    d2t, t2d = build_vocab_mappings_from_distribution(found, 10, VOCAB)
    assert (torch.arange(10) + d2t).tolist() == t2d.nonzero()[:, 0].tolist()


def modelopt_items():
    from modelopt.torch.speculative.eagle.utils import EagleOfflineDataCollator, OfflineSupervisedDataset

    files = sorted(EXPORT.rglob("*.pt"))
    data = OfflineSupervisedDataset([str(file) for file in files], answer_only_loss=True)
    assert len(data) == len(SAMPLES)
    manifest = json.loads((STORE / "manifest.json").read_text())
    prenorm = manifest["final"] == "pre-norm"
    for row, (_, name, tensors) in enumerate(SAMPLES):
        item, n = data[row], len(tensors["input_ids"])
        final = tensors["final_prenorm" if prenorm else "final"]
        same(item["input_ids"], tensors["input_ids"], "input_ids")
        same(item["loss_mask"], mask(tensors), "loss_mask")
        same(item["base_model_hidden_states"], final, "base_model_hidden_states")
        same(item["aux_hidden_states"], aux(tensors), "aux_hidden_states")
        same(item["labels"][:-1], tensors["input_ids"][1:], "labels")
        assert item["base_hidden_prenorm"] is prenorm
        raw = torch.load(files[row], weights_only=True)
        assert raw["conversation_id"] == name
        batch = EagleOfflineDataCollator(MAX_LEN)([item])
        outputs = batch["base_model_outputs"]
        same(batch["labels"][0, : n - 1], tensors["input_ids"][1:], "collated labels")
        same(outputs["aux_hidden_states"][0, :n], aux(tensors), "collated aux_hidden_states")
        same(outputs["base_model_hidden_states"][0, :n], final, "collated base_model_hidden_states")
        assert not batch["attention_mask"][0, n:].any() and outputs["base_hidden_prenorm"] is prenorm


def angelslim_files():
    files = sorted(EXPORT.rglob("*.ckpt"))
    assert len(files) == len(SAMPLES)
    for index, _, tensors in SAMPLES:
        raw = torch.load(EXPORT / f"rows_0-5000/data_{index}.ckpt", weights_only=True)
        assert sorted(raw) == ["hidden_states", "input_ids", "loss_mask", "target_hiddens"]
        same(raw["input_ids"], tensors["input_ids"][None], "input_ids")
        same(raw["loss_mask"], mask(tensors)[None], "loss_mask")
        same(raw["hidden_states"], aux(tensors)[None], "hidden_states")
        same(raw["target_hiddens"], tensors["final"][None], "target_hiddens")
    assert sorted(torch.load(EXPORT / "vocab_mapping.pt", weights_only=True)) == ["d2t", "t2d"]


def ge_data_files():
    files = [file for file in EXPORT.rglob("*") if file.is_file()]
    assert sorted(file.name for file in files) == sorted(f"data_{index}.ckpt" for index, _, _ in SAMPLES)
    for index, _, tensors in SAMPLES:
        raw = torch.load(EXPORT / f"data_{index}.ckpt", weights_only=True)
        assert sorted(raw) == ["hidden_state", "input_ids", "loss_mask"]
        same(raw["input_ids"], tensors["input_ids"], "input_ids")
        same(raw["loss_mask"], mask(tensors), "loss_mask")
        same(raw["hidden_state"], tensors["final"], "hidden_state")


def joined_files():
    for index, _, tensors in SAMPLES:
        path = next((EXPORT / "samples").glob(f"{index:08d}.*"))
        raw = torch.load(path, weights_only=True) if path.suffix == ".pt" else load_file(path)
        assert set(raw) == set(tensors)
        for name, tensor in tensors.items():
            same(raw[name], tensor, name)


CHECKS = {
    "specforge": (specforge_files, specforge_training_view, specforge_vocabulary),
    "speculators": (speculators_items, speculators_vocabulary),
    "modelopt": (modelopt_items,),
    "angelslim": (angelslim_files,),
    "ge_data": (ge_data_files,),
    "pt": (joined_files,),
    "safetensors": (joined_files,),
}


def main():
    results: dict[str, object] = {"samples": len(SAMPLES)}
    for check in CHECKS[sys.argv[3]]:
        try:
            check()
            results[check.__name__] = "ok"
        except Exception:
            results[check.__name__] = traceback.format_exc()
    # What the packages print goes before; the last line is ours.
    print("\n" + json.dumps(results))


main()
