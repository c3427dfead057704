"""The manifest: what it says, that it depends on nothing else, and what the reader refuses."""

import json
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from auxtap.core.draft_ids import EAGLE3_SETTER, OffsetRule
from auxtap.core.errors import PatchError, UsageError
from auxtap.core.files import sha256_bytes
from auxtap.core.source_tree import SRT_ROOT
from auxtap.rewriters.patch.diff import write_patch
from auxtap.rewriters.patch.hazards import decide_hazards
from auxtap.rewriters.patch.manifest import Origin, draft_ids_by_class, manifest_bytes, read_manifest
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.rewriters.patch.registry import parse_models
from auxtap.tests.shaped import DEEPSEEK, LLAMA, shaped_tree
from auxtap.tracer.flow.setters import DraftSetter

ORIGIN = Origin("pypi", "ab" * 32)
SERVER_ARGS = SRT_ROOT / "server_args.py"


def written(layers: tuple[int, ...] = (3, 31)) -> tuple[bytes, bytes]:
    tree = shaped_tree()
    made = write_patch(tree, plan_capture(tree, ("deepseek", "llama"), layers))
    return made.patch, manifest_bytes(made, ORIGIN, "0.1.0", ("applies", "size"))


def test_says_what_the_patch_does() -> None:
    patch, data = written()
    record = json.loads(data)
    assert record["patch_sha256"] == sha256_bytes(patch)
    assert record["default_layers"]["capture_index"] == [3, 31]
    assert record["default_layers"]["transformers_hidden_states"] == [3, 31]
    assert len(record["files"]) == 5 and len(record["insertions"]) == 10
    assert record["checks"] == ["applies", "size"]
    assert {insertion["kind"] for insertion in record["insertions"]} == {"gate", "arm", "note", "tap", "stage"}


def test_says_which_ids_give_the_layers_by_class_and_setter() -> None:
    tree = shaped_tree()
    by_first = (OffsetRule(1, "layer_ids[0] == 1"), OffsetRule(0, "otherwise"))
    setters = (
        DraftSetter("LlamaForCausalLM", LLAMA, EAGLE3_SETTER, (OffsetRule(1),)),
        DraftSetter("DeepseekV3ForCausalLM", DEEPSEEK, "set_dflash_layers_to_capture", (OffsetRule(1),)),
        DraftSetter("DeepseekV3ForCausalLM", DEEPSEEK, EAGLE3_SETTER, by_first),
    )
    plan = replace(plan_capture(tree, ("llama",), (3, 31)), setters=setters)
    record = json.loads(manifest_bytes(write_patch(tree, plan), ORIGIN, "0.1.0", ()))
    assert record["default_layers"]["draft_config_ids"] == {
        "LlamaForCausalLM": {EAGLE3_SETTER: [2, 30]},
        "DeepseekV3ForCausalLM": {EAGLE3_SETTER: [3, 31], "set_dflash_layers_to_capture": [2, 30]},
    }
    assert draft_ids_by_class(replace(plan, layers=(1,)))["DeepseekV3ForCausalLM"][EAGLE3_SETTER] is None


def test_inserted_lines_are_those_of_the_patched_file() -> None:
    tree = shaped_tree()
    made = write_patch(tree, plan_capture(tree, ("llama",), (3,)))
    record = json.loads(manifest_bytes(made, ORIGIN, "0.1.0", ()))
    for entry, change in zip(record["files"], made.changes, strict=True):
        lines = change.after.splitlines()
        assert all(b"_auxtap" in lines[number - 1] for number in entry["inserted_lines"])
        assert len(entry["inserted_lines"]) == 3


def test_is_deterministic_and_holds_no_absolute_path() -> None:
    first, second = written(), written()
    assert first == second
    assert b'"/' not in first[1] and b"0.5.9" in first[1]


def test_the_patch_does_not_hold_the_layers() -> None:
    assert written((3,))[0] == written((7, 9))[0]


def test_reads_back() -> None:
    patch, data = written()
    manifest = read_manifest(data, "it")
    assert manifest.patch_sha256 == sha256_bytes(patch)
    assert (manifest.release, manifest.origin, manifest.layers) == ("0.5.9", ORIGIN, (3, 31))
    assert LLAMA in manifest.files and PurePosixPath("python/sglang/srt/auxtap/gate.py") in manifest.new_files


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"schema": 1}', b'{"schema": 99}', b"\xff"])
def test_refuses_what_is_no_manifest(data: bytes) -> None:
    with pytest.raises(PatchError, match="it "):
        read_manifest(data, "it")


def test_models() -> None:
    assert parse_models("llama, deepseek") == ("deepseek", "llama")
    assert parse_models("all") == ("all",)
    for text in ("", "llama,../x", "all,llama"):
        with pytest.raises(UsageError) as caught:
            parse_models(text)
        assert caught.value.hint and "qwen3_moe" in caught.value.hint


def test_a_model_that_the_tree_does_not_have() -> None:
    with pytest.raises(UsageError, match=r"unknown model nope: .* has no .*models/nope\.py"):
        plan_capture(shaped_tree(), ("llama", "nope"), (3,))


def test_all_models_are_those_that_capture_and_know_stages() -> None:
    plan = plan_capture(shaped_tree(), ("all",), (3,))
    assert [each.path for each in plan.insertions if each.kind == "stage"] == [DEEPSEEK, LLAMA]


def test_two_names_of_one_backbone_give_one_stage_tap() -> None:
    tree = shaped_tree()
    plan = plan_capture(tree, ("deepseek", "kimi_k25"), (3,))
    assert [each.path for each in plan.insertions if each.kind == "stage"] == [DEEPSEEK]
    assert LLAMA not in plan.touched


def decisions(fields: str) -> dict[str, str]:
    body = "".join(f"    {field}: int = 0\n" for field in fields.split())
    tree = shaped_tree({SERVER_ARGS: f"class ServerArgs:\n    pass\n{body}".encode()})
    return {decision.hazard: decision.verdict for decision in decide_hazards(tree)}


def test_a_hazard_is_decided_where_the_release_has_it() -> None:
    assert decisions("") == {}
    assert decisions("enable_two_batch_overlap") == {"two_batch_overlap": "refused"}
    assert decisions("disable_radix_cache") == {"prefix_cache": "flag"}


def test_the_fused_all_reduce_is_repaired_only_where_no_flag_keeps_it_off() -> None:
    assert decisions("enable_flashinfer_allreduce_fusion") == {"fused_all_reduce": "repaired"}
    both = "enable_flashinfer_allreduce_fusion enforce_disable_flashinfer_allreduce_fusion"
    assert decisions(both) == {"fused_all_reduce": "flag"}
