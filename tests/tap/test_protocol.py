"""The joint between tap and extractor: names, headers, records."""

import json
import struct

import pytest
from safetensors import safe_open

from auxtap.tap import protocol
from auxtap.tap.protocol import PartName, ProtocolError, RequestId

DESCRIPTOR = protocol.RankDescriptor(
    host="node-1",
    pid=7,
    nonce="ab",
    pp_rank=0,
    pp_size=1,
    dp_rank=0,
    dp_size=1,
    tp_size=1,
    layers=(2, 3),
    all_layers=(2, 3),
    has_final=True,
    num_layers=8,
    hidden_size=4,
    vocab_size=256,
    context_length=2048,
    dtype="F32",
    model_class="LlamaForCausalLM",
    model_path="m",
    release="0.5.9",
    patch_digest="",
    source_digest="",
)


def test_rid_round_trip():
    rid = RequestId("0123abcd", 17, 2)
    assert protocol.parse_rid(str(rid)) == rid


@pytest.mark.parametrize(
    "rid",
    [
        None,
        17,
        "",
        "HEALTH_CHECK_1",
        "aux1-0123abcd-1",
        "aux1-0123ABCD-1-0",
        "aux1-0123abcd-01-0",
        "aux1-0123abcd-1-0\n",
        "aux1-0123abcd-../x-0",
        "../aux1-0123abcd-1-0",
        "aux1-0123abcd-\u0661-0",
    ],
)
def test_foreign_rids_are_not_ours(rid):
    assert protocol.parse_rid(rid) is None


def test_part_name_round_trip():
    name = PartName(RequestId("0123abcd", 17, 2), 1, 0, protocol.READY)
    assert protocol.parse_part_name(str(name)) == name
    assert protocol.parse_part_name(str(name) + "x") is None
    assert protocol.parse_part_name("x" + str(name)) is None


@pytest.mark.parametrize("host", ["vm", "a b", "../../etc", "gpu-01.example", "-", "", "x" * 300, "ho\nst"])
def test_descriptor_names_never_leave_the_spool(host):
    name = protocol.descriptor_name(host, 3, 1)
    assert protocol.is_descriptor_name(name)
    assert "/" not in name
    assert name.endswith("-3-1.json")


def test_header_is_read_by_safetensors(tmp_path):
    layout = protocol.part_layout(n_tokens=3, layers=[6, 2], has_final=True, hidden_size=4, dtype="BF16")
    metadata = protocol.PartMetadata("r", "n", 0, 0, protocol.blank_digest("sha256")).to_header()
    header = protocol.encode_header(layout.slots, metadata)
    path = tmp_path / "part.safetensors"
    path.write_bytes(header + bytes(layout.data_bytes))
    with safe_open(path, framework="numpy") as file:
        assert list(file.keys()) == ["input_ids", "hidden.2", "hidden.6", "final"] or set(file.keys()) == {
            "input_ids",
            "hidden.2",
            "hidden.6",
            "final",
        }
        assert file.get_slice("hidden.6").get_shape() == [3, 4]
        assert file.metadata()["digest"].startswith("sha256:000")


@pytest.mark.parametrize(
    ("final", "names"),
    [
        ("post-norm", ["final"]),
        ("pre-norm", ["final_prenorm"]),
        ("both", ["final", "final_prenorm"]),
    ],
)
def test_final_states_come_last(final, names):
    layout = protocol.part_layout(n_tokens=3, layers=[6, 2], has_final=True, hidden_size=4, dtype="BF16", final=final)
    assert [slot.name for slot in layout.slots] == ["input_ids", "hidden.2", "hidden.6", *names]
    layout = protocol.part_layout(n_tokens=3, layers=[6], has_final=False, hidden_size=4, dtype="BF16", final=final)
    assert [slot.name for slot in layout.slots] == ["input_ids", "hidden.6"]


def test_a_descriptor_of_an_older_tap_is_post_norm():
    record = DESCRIPTOR.to_json()
    del record["final"]
    assert protocol.RankDescriptor.from_json(record).final_tensors == ("final",)


def test_header_round_trip_and_constant_length():
    layout = protocol.part_layout(n_tokens=3, layers=[2], has_final=False, hidden_size=4, dtype="F32")
    headers = [
        protocol.encode_header(layout.slots, protocol.PartMetadata("r", "n", 0, 0, digest).to_header())
        for digest in (protocol.blank_digest("sha256"), "sha256:" + "f" * 64)
    ]
    assert len(headers[0]) == len(headers[1])
    assert len(headers[0]) % 8 == 0
    decoded = protocol.decode_header(headers[1])
    assert decoded.slots == layout.slots
    assert decoded.n_bytes == len(headers[1])
    assert decoded.data_bytes == layout.data_bytes == 3 * 8 + 3 * 4 * 4


def _raw(entries: object) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 7,
        struct.pack("<Q", 1 << 40),
        struct.pack("<Q", 100) + b"{}",
        _raw(b"[]"),
        _raw(b"\xff\xfe{}"),
        _raw(b"[" * 5000),
        _raw({"a": 1}),
        _raw({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}),
        _raw({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, -8]}}),
        _raw({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}),
        _raw({"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}),
        _raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}),
        _raw(
            {
                "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]},
            }
        ),
        _raw({"__metadata__": {"a": 1}}),
        _raw({"__metadata__": []}),
    ],
)
def test_hostile_headers_are_refused(data):
    with pytest.raises(ProtocolError):
        protocol.decode_header(data)


def test_descriptor_round_trip():
    record = json.loads(json.dumps(DESCRIPTOR.to_json()))
    assert protocol.RankDescriptor.from_json(record) == DESCRIPTOR
    assert DESCRIPTOR.writes_parts
    assert DESCRIPTOR.way == "patch"
    assert protocol.RankDescriptor.from_json({**record, "way": "plugin"}).way == "plugin"


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": 2},
        {"layers": "2,3"},
        {"layers": [True]},
        {"dtype": "F64"},
        {"pp_size": "1"},
        {"has_final": 1},
        {"final": "before"},
        {"surplus": 1},
        {"way": "magic"},
        {"way": None},
    ],
)
def test_odd_descriptors_are_refused(change):
    with pytest.raises(ProtocolError):
        protocol.RankDescriptor.from_json({**DESCRIPTOR.to_json(), **change})


def test_descriptor_of_another_kind_is_refused():
    values: tuple[object, ...] = (None, [], "x", {})
    for value in values:
        with pytest.raises(ProtocolError):
            protocol.RankDescriptor.from_json(value)
        with pytest.raises(ProtocolError):
            protocol.TapStats.from_json(value)
        with pytest.raises(ProtocolError):
            protocol.FailureRecord.from_json(value)


def test_digests():
    for algorithm in ("sha256", "xxh3_128"):
        digest = protocol.new_digest(algorithm)
        digest.update(b"x")
        assert protocol.split_digest(f"{algorithm}:{digest.hexdigest()}") == (algorithm, digest.hexdigest())
    for odd in ("", "md5:00", "sha256:00", "sha256:" + "g" * 64):
        with pytest.raises(ProtocolError):
            protocol.split_digest(odd)
