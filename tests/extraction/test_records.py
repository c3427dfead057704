"""What lies on disk as JSON is read as it was always written, written back the same, and refused with its fault."""

import json
from typing import Any

import pytest

from auxtap.core.files import json_bytes
from auxtap.extraction.store.ledger import LedgerLine
from auxtap.extraction.store.store_manifest import StoreManifest

PART = (
    '{"file":"samples/00000004.pp1.safetensors","stage":1,"dp":0,"states":["hidden.5","final"],"n_bytes":640,'
    '"digest":"xxh3_128:00112233445566778899aabbccddeeff","tap_digest":"sha256:00"}'
)
STORED = (
    '{"index":4,"id":"Grüße/4","fate":"stored","reason":"","n_tokens":11,"attempts":2,"ids_digest":"xxh3_128:ff",'
    f'"parts":[{PART}],"time":"2026-11-01T10:00:00.123+00:00","split":"holdout","seconds":0.125}}'
)
SKIPPED = (
    '{"index":5,"id":"s5","fate":"skipped","reason":"too long","n_tokens":99,"attempts":0,"ids_digest":"xxh3_128:ee",'
    '"parts":[],"time":"2026-11-01T10:00:00.124+00:00"}'
)
MANIFEST: dict[str, Any] = {
    "auxtap_store": 1,
    "run": "0123abcd",
    "sessions": 2,
    "tool_version": "0.1.0",
    "format": "safetensors",
    "model": {
        "path": "/models/tiny", "model_class": "TinyForCausalLM", "num_layers": 8, "hidden_size": 16, "vocab_size": 100,
        "context_length": 64,
    },
    "release": "0.5.9",
    "source_digest": "s",
    "patch_digest": "p",
    "way": "plugin",
    "dtype": "BF16",
    "hidden_size": 16,
    "final": "both",
    "layers": [
        {"capture_index": 3, "draft_config_id": None, "transformers_hidden_states": 3, "output_of_layer": 2},
    ],
    "pp_size": 1,
    "stages": [{"pp": 0, "states": ["hidden.3", "final", "final_prenorm"]}],
    "dataset": {
        "digest": "d", "n_samples": 7, "n_tokens": 70, "tokenizer": "t", "holdout": "10%", "counts": {"kept": 7},
    },
    "shard": "1/2",
    "server_arguments": {"tp_size": 1, "chat_template": None},
}  # fmt: skip


@pytest.mark.parametrize("text", [STORED, SKIPPED])
def test_a_ledger_line_is_written_back_byte_for_byte(text: str) -> None:
    line = LedgerLine.from_json(json.loads(text))
    assert json.dumps(line.to_json(), separators=(",", ":"), ensure_ascii=False) == text


@pytest.mark.parametrize("without", [(), ("shard",)])
def test_a_manifest_is_written_back_byte_for_byte(without: tuple[str, ...]) -> None:
    record = {key: value for key, value in MANIFEST.items() if key not in without}
    manifest = StoreManifest.from_json(json.loads(json_bytes(record)))
    assert json_bytes(manifest.to_json()) == json_bytes(record)
    assert (manifest.part_format, manifest.layers, manifest.n_expected) == ("safetensors", (3,), 7 if without else 4)


def test_a_manifest_of_before_the_setters_were_read_has_no_ids() -> None:
    record = {**MANIFEST, "layers": [{**MANIFEST["layers"][0], "draft_config_id": 2}]}
    assert StoreManifest.from_json(record).draft_ids is None


def test_a_manifest_of_before_the_plugin_is_of_the_patch() -> None:
    record = {key: value for key, value in MANIFEST.items() if key != "way"}
    assert StoreManifest.from_json(record).way == "patch"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"auxtap_store": 2}, "not the manifest of a store of version 1"),
        ({"run": None}, "run"),
        ({"run": "0123ABCD"}, "run"),
        ({"run": "0123abcd\n"}, "run"),
        ({"sessions": True}, "sessions"),
        ({"sessions": -1}, "sessions"),
        ({"format": 3}, "part_format"),
        ({"model": {**MANIFEST["model"], "depth": 3}}, "model has an unknown depth"),
        ({"model": {}}, "path"),
        ({"dataset": {**MANIFEST["dataset"], "holdout": "2/1"}}, "holdout is '2/1', no share"),
        ({"dataset": {**MANIFEST["dataset"], "name": "x"}}, "dataset has an unknown name"),
        ({"way": "magic"}, "way"),
        ({"final": "none"}, "final is 'none', none of post-norm, pre-norm, both"),
        ({"shard": "0/2"}, "shard"),
        ({"hidden_size": 17}, "hidden_size does not agree with the model's"),
        ({"layers": [{**MANIFEST["layers"][0], "output_of_layer": 3}]}, "layers do not agree"),
        ({"stages": [{"pp": 0, "states": [1]}]}, "states"),
    ],
)
def test_a_manifest_that_is_none_is_refused_with_its_fault(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        StoreManifest.from_json({**MANIFEST, **change})


@pytest.mark.parametrize("name", sorted(MANIFEST.keys() - {"shard", "way"}))
def test_what_a_manifest_lacks_is_named(name: str) -> None:
    named = {"auxtap_store": "not the manifest", "format": "part_format", "layers": "array"}.get(name, "")
    record = {key: value for key, value in MANIFEST.items() if key != name}
    with pytest.raises(ValueError, match=named or name if name not in ("model", "dataset") else "object"):
        StoreManifest.from_json(record)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"index": 3}, "is not that of sample 3"),
        ({"n_tokens": True}, "n_tokens"),
        ({"n_tokens": -1}, "n_tokens"),
        ({"fate": "lost"}, "fate 'lost' with 1 parts"),
        ({"parts": []}, "fate 'stored' with 0 parts"),
        ({"parts": {}}, "parts"),
        ({"seconds": float("nan")}, "seconds"),
        ({"seconds": float("inf")}, "seconds"),
        ({"seconds": "1"}, "seconds"),
        ({"split": 3}, "split"),
        ({"id": 3}, "sample_id"),
    ],
)
def test_a_ledger_line_that_is_none_is_refused_with_its_fault(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LedgerLine.from_json({**json.loads(STORED), **change})


def test_a_ledger_line_without_an_id_is_refused() -> None:
    record = json.loads(STORED)
    del record["id"]
    with pytest.raises(ValueError, match="id is missing"):
        LedgerLine.from_json(record)
