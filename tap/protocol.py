"""The spool protocol: names, headers and records that the tap writes and the extractor reads.

Standard library only and Python 3.10, because this file also runs inside the server. A *part* is one safetensors
file per (request, pipeline stage): while it is written it ends in `.part`, when every row is there it gets its
digest and is renamed to `.ready`; a part that cannot be had is announced by a `.failed` record instead.
"""

import hashlib
import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

PROTOCOL_VERSION = 1

# Environment of a tapped server. AUXTAP_SPOOL is the switch: unset, the tap is not imported.
ENV_SPOOL = "AUXTAP_SPOOL"
ENV_LAYERS = "AUXTAP_LAYERS"
ENV_FINAL = "AUXTAP_FINAL"
ENV_PATCH_DIGEST = "AUXTAP_PATCH_DIGEST"
ENV_SOURCE_DIGEST = "AUXTAP_SOURCE_DIGEST"
ENV_RELEASE = "AUXTAP_RELEASE"
# Set by the plugin, which puts the same lines into the functions in memory that the patch puts into the files.
ENV_WAY = "AUXTAP_WAY"
ENV_MAX_PENDING_BYTES = "AUXTAP_MAX_PENDING_BYTES"
ENV_MAX_WAIT_S = "AUXTAP_MAX_WAIT_S"

WAYS = PATCH_WAY, PLUGIN_WAY = ("patch", "plugin")
WRITING, READY, FAILED, WITNESS = "part", "ready", "failed", "witness"
# A run of which the ranks that write nothing bear witness begins like this.
CANARY_PREFIX = "ca9a"
INPUT_IDS, FINAL, FINAL_PRENORM, HIDDEN_PREFIX = "input_ids", "final", "final_prenorm", "hidden."
# Which final states a server takes -> their tensors, in the order of the file.
POST_NORM, PRE_NORM, BOTH_NORMS = "post-norm", "pre-norm", "both"
FINAL_TENSORS: "dict[str, tuple[str, ...]]" = {
    POST_NORM: (FINAL,),
    PRE_NORM: (FINAL_PRENORM,),
    BOTH_NORMS: (FINAL, FINAL_PRENORM),
}

DTYPE_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "U8": 1}
_DIGESTS = {"sha256": 64, "xxh3_128": 32}
_RID = re.compile(r"aux1-([0-9a-f]{8})-(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,8})")
_PART = re.compile(rf"({_RID.pattern})\.pp([0-9]{{1,4}})\.dp([0-9]{{1,4}})\.({WRITING}|{READY}|{FAILED})")
_WITNESS = re.compile(rf"{_RID.pattern}\.pp[0-9]{{1,4}}\.dp[0-9]{{1,4}}\.tp[0-9]{{1,4}}\.{WITNESS}")
_DESCRIPTOR = re.compile(r"rank-([A-Za-z0-9_.]{1,64}(?:-[A-Za-z0-9_.]{1,64})*)-([0-9]{1,4})-([0-9]{1,4})\.json")
_HEX = re.compile(r"[0-9a-f]+")
MAX_HEADER_BYTES = 1 << 20


class ProtocolError(ValueError):
    """Bytes or names in the spool are not what the protocol says."""


@dataclass(frozen=True)
class RequestId:
    """The rid of one attempt at one sample; `run` is eight hexadecimal digits."""

    run: str
    index: int
    attempt: int

    def __str__(self) -> str:
        return f"aux1-{self.run}-{self.index}-{self.attempt}"


def parse_rid(rid: object) -> "RequestId | None":
    """Return the parts of a rid that the extractor made, None for anybody else's."""
    match = _RID.fullmatch(rid) if isinstance(rid, str) else None
    if match is None:
        return None
    return RequestId(match[1], int(match[2]), int(match[3]))


@dataclass(frozen=True)
class PartName:
    """What a part's file name says: the request, the pipeline stage, the data-parallel group, the state."""

    rid: RequestId
    pp: int
    dp: int
    suffix: str

    def __str__(self) -> str:
        return f"{self.rid}.pp{self.pp}.dp{self.dp}.{self.suffix}"


def parse_part_name(name: str) -> PartName | None:
    """Return what a file name in the spool says, None when it is no part's name."""
    match = _PART.fullmatch(name)
    if match is None:
        return None
    return PartName(RequestId(match[2], int(match[3]), int(match[4])), int(match[5]), int(match[6]), match[7])


def is_canary(rid: RequestId) -> bool:
    """Tell whether every rank is to bear witness of a request."""
    return rid.run.startswith(CANARY_PREFIX)


def witness_name(part: PartName, tp: int) -> str:
    """Return the name of what attention-TP rank `tp` saw of a part."""
    return f"{part.rid}.pp{part.pp}.dp{part.dp}.tp{tp}.{WITNESS}"


def is_witness_name(name: str) -> bool:
    """Tell whether a file name in the spool is a witness's."""
    return _WITNESS.fullmatch(name) is not None


def descriptor_name(host: str, pp: int, dp: int) -> str:
    """Return the file name of a writer's descriptor; anything odd in `host` becomes an underscore."""
    safe_host = re.sub(r"[^A-Za-z0-9_.-]", "_", host).strip("-.")[:63] or "host"
    return f"rank-{safe_host}-{pp}-{dp}.json"


def is_descriptor_name(name: str) -> bool:
    """Tell whether `name` is a writer's descriptor."""
    return _DESCRIPTOR.fullmatch(name) is not None


def stats_name(descriptor: str) -> str:
    """Return the name of the counters that the writer of `descriptor` publishes."""
    return "stats-" + descriptor[len("rank-") :]


SetterRules = Mapping[str, Sequence["tuple[int | None, str | None]"]]


@dataclass(frozen=True)
class RankDescriptor:
    """What one writer (attention-TP rank 0 of a stage and DP group) says of itself once, when it is armed.

    `layers` are the capture indices that this stage owns, ascending; `all_layers` those of the whole run.
    `has_final` is true on the last stage, and `final` says which final states it takes there. A stage with neither
    writes no parts. `dtype` is safetensors' name. `way` says how the patch of `patch_digest` got into the server: into
    its files, or by the plugin into its memory. `setters` are those of the served class, and what each makes of a draft
    model's ids: what it adds, by condition.
    """

    host: str
    pid: int
    nonce: str
    pp_rank: int
    pp_size: int
    dp_rank: int
    dp_size: int
    tp_size: int
    layers: tuple[int, ...]
    all_layers: tuple[int, ...]
    has_final: bool
    num_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    dtype: str
    model_class: str
    model_path: str
    release: str
    patch_digest: str
    source_digest: str
    way: str = PATCH_WAY
    final: str = POST_NORM
    protocol: int = PROTOCOL_VERSION
    setters: "SetterRules" = field(default_factory=dict, hash=False)

    @property
    def final_tensors(self) -> tuple[str, ...]:
        """The tensors of the final state that this stage's parts hold."""
        return FINAL_TENSORS[self.final] if self.has_final else ()

    @property
    def writes_parts(self) -> bool:
        """Whether every request leaves a part of this stage."""
        return self.has_final or bool(self.layers)

    def to_json(self) -> dict[str, Any]:
        """Return the record as it is published."""
        setters = {name: [list(rule) for rule in rules] for name, rules in self.setters.items()}
        return {**asdict(self), "layers": list(self.layers), "all_layers": list(self.all_layers), "setters": setters}

    @classmethod
    def from_json(cls, value: object) -> "RankDescriptor":
        """Read a published record.

        Raises:
            ProtocolError: it is of another protocol, a key is missing, or a value has the wrong type.
        """
        if not isinstance(value, dict) or value.get("protocol") != PROTOCOL_VERSION:
            raise ProtocolError(f"not a rank descriptor of protocol {PROTOCOL_VERSION}")
        record = dict(value)
        for key in ("layers", "all_layers"):
            layers = record.get(key)
            if not isinstance(layers, list) or not all(type(i) is int for i in layers):
                raise ProtocolError(f"rank descriptor: {key} is not a list of integers")
            record[key] = tuple(layers)
        record["setters"] = _read_setters(record.get("setters", {}))
        try:
            descriptor = cls(**record)
        except TypeError as error:
            raise ProtocolError(f"rank descriptor: {error}") from None
        for name, kind in cls.__annotations__.items():
            if kind in (int, str, bool) and type(getattr(descriptor, name)) is not kind:
                raise ProtocolError(f"rank descriptor: {name} is not of type {kind.__name__}")
        if descriptor.dtype not in DTYPE_BYTES:
            raise ProtocolError(f"rank descriptor: unknown dtype {descriptor.dtype!r}")
        if descriptor.way not in WAYS:
            raise ProtocolError(f"rank descriptor: unknown way {descriptor.way!r}")
        if descriptor.final not in FINAL_TENSORS:
            raise ProtocolError(f"rank descriptor: unknown final state {descriptor.final!r}")
        return descriptor


def _read_setters(value: object) -> SetterRules:
    """Read what setters make of ids.

    Raises:
        ProtocolError: it is of another shape.
    """
    if not isinstance(value, dict) or not all(isinstance(rules, list) for rules in value.values()):
        raise ProtocolError("rank descriptor: setters is no table of rules")
    read: dict[str, tuple[tuple[int | None, str | None], ...]] = {}
    for name, rules in value.items():
        for rule in rules:
            if not isinstance(rule, list) or [type(item) for item in rule] not in _RULE_TYPES:
                raise ProtocolError(f"rank descriptor: {name} has a rule that is none: {rule!r}")
        read[name] = tuple((offset, condition) for offset, condition in rules)
    return read


_RULE_TYPES = [[offset, condition] for offset in (int, type(None)) for condition in (str, type(None))]


@dataclass(frozen=True)
class TapStats:
    """Counters since the writer was armed; published again whenever one of them has changed."""

    nonce: str
    parts_ready: int = 0
    parts_failed: int = 0
    unattributed_batches: int = 0
    bytes_written: int = 0
    waits: int = 0
    waited_s: float = 0.0
    peak_pending_bytes: int = 0
    errors: int = 0
    last_error: str = ""
    protocol: int = PROTOCOL_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the record as it is published."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> "TapStats":
        """Read a published record.

        Raises:
            ProtocolError: it is of another protocol or its keys are others.
        """
        if not isinstance(value, dict) or value.get("protocol") != PROTOCOL_VERSION:
            raise ProtocolError(f"not a stats record of protocol {PROTOCOL_VERSION}")
        try:
            return cls(**value)
        except TypeError as error:
            raise ProtocolError(f"stats record: {error}") from None


@dataclass(frozen=True)
class FailureRecord:
    """Why a part will never be ready; the content of a `.failed` file."""

    rid: str
    nonce: str
    reason: str
    protocol: int = PROTOCOL_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the record as it is published."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> "FailureRecord":
        """Read a published record.

        Raises:
            ProtocolError: it is of another protocol or its keys are others.
        """
        if not isinstance(value, dict) or value.get("protocol") != PROTOCOL_VERSION:
            raise ProtocolError(f"not a failure record of protocol {PROTOCOL_VERSION}")
        try:
            return cls(**value)
        except TypeError as error:
            raise ProtocolError(f"failure record: {error}") from None


@dataclass(frozen=True)
class WitnessRecord:
    """What a rank that writes no states saw of a canary's prompt: for each tensor of a part its digest, over the rows
    in the order they came, and for each state the sum of its squares."""

    rid: str
    nonce: str
    tp: int
    n_rows: int
    digests: dict[str, str]
    squares: dict[str, float]
    protocol: int = PROTOCOL_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the record as it is published."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> "WitnessRecord":
        """Read a published record.

        Raises:
            ProtocolError: it is of another protocol, its keys are others, or a value has the wrong type.
        """
        if not isinstance(value, dict) or value.get("protocol") != PROTOCOL_VERSION:
            raise ProtocolError(f"not a witness record of protocol {PROTOCOL_VERSION}")
        try:
            record = cls(**value)
            digests = {str(name): str(digest) for name, digest in record.digests.items()}
            squares = {str(name): float(square) for name, square in record.squares.items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"witness record: {error}") from None
        return replace(record, digests=digests, squares=squares)


@dataclass(frozen=True)
class TensorSlot:
    """One tensor within a part: `offset` counts from the end of the header, row 0 first."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one token."""
        n_bytes = DTYPE_BYTES[self.dtype]
        for size in self.shape[1:]:
            n_bytes *= size
        return n_bytes

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.row_bytes * self.shape[0]


@dataclass(frozen=True)
class PartLayout:
    """Where each tensor of a part lies; without gaps, in the order of `slots`."""

    slots: tuple[TensorSlot, ...]
    n_tokens: int

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(slot.n_bytes for slot in self.slots)

    def slot(self, name: str) -> TensorSlot:
        """Return the slot called `name`.

        Raises:
            KeyError: there is none.
        """
        for slot in self.slots:
            if slot.name == name:
                return slot
        raise KeyError(name)


def part_layout(
    *, n_tokens: int, layers: Sequence[int], has_final: bool, hidden_size: int, dtype: str, final: str = POST_NORM
) -> PartLayout:
    """Lay out a part: `input_ids` int64 [tokens], `hidden.<i>` ascending, final states, each [tokens, hidden]."""
    names = [f"{HIDDEN_PREFIX}{layer}" for layer in sorted(layers)]
    names += FINAL_TENSORS[final] if has_final else ()
    slots = [TensorSlot(INPUT_IDS, "I64", (n_tokens,), 0)]
    for name in names:
        offset = slots[-1].offset + slots[-1].n_bytes
        slots.append(TensorSlot(name, dtype, (n_tokens, hidden_size), offset))
    return PartLayout(tuple(slots), n_tokens)


@dataclass(frozen=True)
class PartMetadata:
    """What the header of a part says besides its tensors.

    `digest` is `algorithm:hexadecimal` over all tensor bytes; all zeros while the part is being written.
    """

    rid: str
    nonce: str
    pp: int
    dp: int
    digest: str

    def to_header(self) -> dict[str, str]:
        """Return safetensors' string-to-string metadata."""
        return {
            "auxtap_protocol": str(PROTOCOL_VERSION),
            "rid": self.rid,
            "nonce": self.nonce,
            "pp": str(self.pp),
            "dp": str(self.dp),
            "digest": self.digest,
        }


def encode_header(slots: Sequence[TensorSlot], metadata: Mapping[str, str]) -> bytes:
    """Return a safetensors header; its length depends on the lengths of the values, not on the values."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    for slot in slots:
        span = [slot.offset, slot.offset + slot.n_bytes]
        entries[slot.name] = {"dtype": slot.dtype, "shape": list(slot.shape), "data_offsets": span}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 8)
    return struct.pack("<Q", len(text)) + text


@dataclass(frozen=True)
class Header:
    """A decoded safetensors header: `n_bytes` of it precede the tensors."""

    slots: tuple[TensorSlot, ...]
    metadata: dict[str, str] = field(hash=False)
    n_bytes: int

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(slot.n_bytes for slot in self.slots)


def header_length(prefix: bytes) -> int:
    """Return how many bytes the header takes in all, from the first eight.

    Raises:
        ProtocolError: fewer than eight bytes, or a length beyond `MAX_HEADER_BYTES`.
    """
    if len(prefix) < 8:
        raise ProtocolError("file ends within the header")
    (length,) = struct.unpack("<Q", prefix[:8])
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise ProtocolError(f"header length {length} is out of range")
    return int(length) + 8


def decode_header(data: bytes) -> Header:
    """Read a whole header (`header_length` bytes) of an untrusted file.

    Raises:
        ProtocolError: not JSON, an unknown dtype, or tensors that overlap, leave gaps or do not fit their shapes.
    """
    n_bytes = header_length(data)
    if len(data) < n_bytes:
        raise ProtocolError("file ends within the header")
    try:
        entries = json.loads(data[8:n_bytes])
        metadata = entries.pop("__metadata__", {})
        slots = sorted((_decode_slot(name, entry) for name, entry in entries.items()), key=_by_offset)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"header is unreadable: {error}") from None
    strings = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    if not strings:
        raise ProtocolError("header metadata is not a map of strings")
    end = 0
    for slot in slots:
        if slot.offset != end:
            raise ProtocolError(f"tensor {slot.name!r} does not begin where the one before it ends")
        end += slot.n_bytes
    return Header(tuple(slots), metadata, n_bytes)


def _by_offset(slot: TensorSlot) -> tuple[int, int]:
    return slot.offset, slot.n_bytes


def _decode_slot(name: str, entry: dict[str, Any]) -> TensorSlot:
    shape = entry["shape"]
    if entry["dtype"] not in DTYPE_BYTES:
        raise ValueError(f"dtype {entry['dtype']!r} of {name!r} is unknown")
    if not shape or not all(type(size) is int and 0 <= size < 1 << 40 for size in shape):
        raise ValueError(f"shape of {name!r} is not a list of sizes")
    begin, end = entry["data_offsets"]
    slot = TensorSlot(name, entry["dtype"], tuple(shape), begin)
    if type(begin) is not int or type(end) is not int or end - begin != slot.n_bytes:
        raise ValueError(f"bytes of {name!r} do not fit its shape")
    return slot


def best_digest() -> str:
    """Return the fastest digest to be had here: xxh3_128 where xxhash is installed, else sha256."""
    try:
        import xxhash  # noqa: F401
    except ImportError:
        return "sha256"
    return "xxh3_128"


def new_digest(algorithm: str) -> Any:
    """Return a hash object of `algorithm` with `update` and `hexdigest`.

    Raises:
        ProtocolError: the algorithm is unknown.
    """
    if algorithm == "sha256":
        return hashlib.sha256()
    if algorithm == "xxh3_128":
        import xxhash

        return xxhash.xxh3_128()
    raise ProtocolError(f"unknown digest algorithm {algorithm!r}")


def blank_digest(algorithm: str) -> str:
    """Return the digest that stands in a header until the part is whole."""
    return f"{algorithm}:{'0' * _DIGESTS[algorithm]}"


def split_digest(digest: str) -> tuple[str, str]:
    """Split `algorithm:hexadecimal`.

    Raises:
        ProtocolError: the form, the algorithm or the length is another.
    """
    algorithm, _, value = digest.partition(":")
    if _DIGESTS.get(algorithm) != len(value) or _HEX.fullmatch(value) is None:
        raise ProtocolError(f"not a digest: {digest[:100]!r}")
    return algorithm, value
