"""What a store is of; written once, held against every later run."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from auxtap.core.codec import Count, typed
from auxtap.core.draft_ids import EAGLE3_SETTER
from auxtap.core.errors import ExtractionError, IntegrityError
from auxtap.extraction.datasets.holdout import is_holdout
from auxtap.tap.protocol import FINAL_TENSORS, PATCH_WAY, WAYS

STORE_VERSION = 1
# Stands for the run of a store that is yet to begin.
NO_RUN = "0" * 8
_SHARD = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")
# Where a store began is told by these; what may change from session to session is not among them.
_IDENTITY = (
    "part_format", "model", "release", "source_digest", "patch_digest", "way", "dtype", "final", "layers", "stages",
    "dataset", "shard",
)  # fmt: skip


@dataclass(frozen=True)
class ModelFacts:
    """The served model."""

    path: str
    model_class: str
    num_layers: Count
    hidden_size: Count
    vocab_size: Count
    context_length: int


@dataclass(frozen=True)
class StageStates:
    """The states that a pipeline stage's part holds, in the order of the file."""

    pp: Count
    states: tuple[str, ...]


@dataclass(frozen=True)
class DatasetFacts:
    """The dataset; `digest` covers ids, tokens and masks.

    `tokenizer` is the digest of what made the tokens, empty when they were made elsewhere; `holdout` the share of
    the samples whose split is `holdout`; `counts` what became of the dataset's records.
    """

    digest: str
    n_samples: Count
    n_tokens: Count
    # The same tokens are the same dataset whoever made them.
    tokenizer: str = field(default="", compare=False)
    holdout: str = ""
    counts: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class StoreManifest:
    """A store's own description.

    `layers` are capture indices, `sessions` counts the runs that wrote into it, `shard` is `number/count` when it
    takes a part of the dataset only, `way` whether the patch of `patch_digest` was in the server's files or, by the
    plugin, in its memory alone, `final` which final states there are (`FINAL_TENSORS` of the protocol). `draft_ids`
    are the ids by which each setter of the served class would choose the layers, by its name; None for a setter that
    can be given no such list, and None altogether in a store that does not say.
    """

    run: Annotated[str, Meta(pattern=r"\A[0-9a-f]{8}\Z")]
    sessions: Count
    tool_version: str
    part_format: str
    model: ModelFacts
    release: str
    source_digest: str
    patch_digest: str
    dtype: str
    final: str
    layers: tuple[Count, ...]
    pp_size: Count
    stages: tuple[StageStates, ...]
    dataset: DatasetFacts
    server_arguments: Mapping[str, Any] = field(hash=False)
    shard: Annotated[str, Meta(pattern=rf"\A({_SHARD.pattern})?\Z")] = ""
    way: Annotated[str, Meta(pattern=rf"\A({'|'.join(WAYS)})\Z")] = PATCH_WAY
    draft_ids: Mapping[str, tuple[int, ...] | None] | None = field(default=None, hash=False)

    @property
    def n_expected(self) -> int:
        """How many samples the store is to hold."""
        match = _SHARD.fullmatch(self.shard)
        if match is None:
            return self.dataset.n_samples
        return len(range(int(match[1]) - 1, self.dataset.n_samples, int(match[2])))

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as it is published, the layers in every convention."""
        return {
            "auxtap_store": STORE_VERSION,
            "run": self.run,
            "sessions": self.sessions,
            "tool_version": self.tool_version,
            "format": self.part_format,
            "model": asdict(self.model),
            "release": self.release,
            "source_digest": self.source_digest,
            "patch_digest": self.patch_digest,
            "way": self.way,
            "dtype": self.dtype,
            "hidden_size": self.model.hidden_size,
            "final": self.final,
            "layers": list(self._conventions()),
            **({} if self.draft_ids is None else {"draft_config_ids": self._listed_ids()}),
            "pp_size": self.pp_size,
            "stages": [{"pp": stage.pp, "states": list(stage.states)} for stage in self.stages],
            "dataset": asdict(self.dataset),
            **({"shard": self.shard} if self.shard else {}),
            "server_arguments": dict(self.server_arguments),
        }

    def _listed_ids(self) -> dict[str, list[int] | None]:
        return {name: None if ids is None else list(ids) for name, ids in (self.draft_ids or {}).items()}

    def _conventions(self) -> Iterator[dict[str, int | None]]:
        """Name each layer in every convention.

        The input of block i is what block i-1 put out, and transformers' `hidden_states[i]`. Its id in a draft model's
        configuration is what EAGLE-3's setter of the served class takes for it, None where there is none.
        """
        ids = (self.draft_ids or {}).get(EAGLE3_SETTER)
        for layer, given in zip(self.layers, [None] * len(self.layers) if ids is None else sorted(ids), strict=True):
            yield {
                "capture_index": layer,
                "draft_config_id": given,
                "transformers_hidden_states": layer,
                "output_of_layer": layer - 1,
            }

    @classmethod
    def from_json(cls, value: object) -> "StoreManifest":
        """Read a manifest.

        Raises:
            ValueError: it is none, or of another store version.
        """
        record = typed(dict[str, Any], value)
        if record.get("auxtap_store") != STORE_VERSION:
            raise ValueError(f"not the manifest of a store of version {STORE_VERSION}")
        for name, kind in (("model", ModelFacts), ("dataset", DatasetFacts)):
            unknown = typed(dict[str, Any], record.get(name)).keys() - {each.name for each in fields(kind)}
            if unknown:
                raise ValueError(f"{name} has an unknown {min(unknown)}")
        layers = typed(tuple[dict[str, int | None], ...], record.get("layers"))
        indices = [layer.get("capture_index") for layer in layers]
        renamed = {"part_format": record.get("format"), "draft_ids": record.get("draft_config_ids"), "layers": indices}
        manifest = typed(cls, {**record, **renamed})
        manifest._check(record)
        return manifest

    def _check(self, record: Mapping[str, Any]) -> None:
        if self.dataset.holdout and not is_holdout(self.dataset.holdout):
            raise ValueError(f"holdout is {self.dataset.holdout!r}, no share")
        if self.final not in FINAL_TENSORS:
            raise ValueError(f"final is {self.final!r}, none of {', '.join(FINAL_TENSORS)}")
        if any(ids is not None and len(ids) != len(self.layers) for ids in (self.draft_ids or {}).values()):
            raise ValueError("draft_config_ids are not as many as the layers")
        # A store of an earlier version says nothing of setters, and its ids are those of a setter that adds one.
        known = self.draft_ids is not None
        stated = [layer if known else layer | {"draft_config_id": None} for layer in record["layers"]]
        if list(self._conventions()) != stated:
            raise ValueError("layers do not agree with their own conventions")
        if record.get("hidden_size") != self.model.hidden_size:
            raise ValueError("hidden_size does not agree with the model's")

    def differences(self, other: "StoreManifest") -> tuple[str, ...]:
        """Say in what `other` is of something else than this, as `what: this, now that`."""
        found: list[str] = []
        for name in _IDENTITY:
            _compare(name, getattr(self, name), getattr(other, name), found)
        return tuple(found)


def _compare(name: str, old: Any, new: Any, found: list[str]) -> None:
    if old == new:
        return
    if isinstance(old, ModelFacts | DatasetFacts):
        for key, value in asdict(old).items():
            if key == "counts" or (key == "tokenizer" and not (value and new.tokenizer)):
                continue
            label = key if key.startswith(name) else f"{name} {key}"
            _compare(label, value, getattr(new, key), found)
        return
    found.append(f"{name.replace('_', ' ')}: {_show(old)}, now {_show(new)}")


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_show(item) for item in value) + "]"
    if isinstance(value, StageStates):
        return f"stage {value.pp} {'+'.join(value.states)}"
    return str(value) or "(none)"


def final_tensors(final: str) -> tuple[str, ...]:
    """Return the names of a store's final states, in the order of the file; `final` is a manifest's."""
    return FINAL_TENSORS[final]


def read_manifest(path: Path) -> StoreManifest:
    """Read a store's manifest.

    Raises:
        FileNotFoundError: there is none.
        IntegrityError: it is unreadable.
    """
    try:
        return StoreManifest.from_json(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is unreadable: {error}", hint="the store was changed from outside") from None


def check_same(stored: StoreManifest, now: StoreManifest, store: Path) -> None:
    """Refuse to go on in a store of something else.

    Raises:
        ExtractionError: they differ; names each difference.
    """
    differences = stored.differences(now)
    if differences:
        raise ExtractionError(
            f"store {store} is of something else: {'; '.join(differences)}",
            hint="give another --out, or serve what the store was begun with",
        )
