"""The record that goes with a patch: what it was made from, what it does, what was decided and checked."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from auxtap.core.draft_ids import find_draft_ids
from auxtap.core.errors import PatchError
from auxtap.core.files import sha256_bytes
from auxtap.rewriters.patch.diff import PatchSet
from auxtap.rewriters.patch.plan import CapturePlan
from auxtap.rewriters.places.insertion import inserted_lines
from auxtap.tracer.report.readings import ClassFate

SCHEMA = 1
_MAX_LINE = 400


@dataclass(frozen=True)
class Origin:
    """Where the patched tree came from: `checkout`, `package` or `pypi`, and the digest of its `.py` files."""

    kind: str
    source_digest: str


@dataclass(frozen=True)
class FileDigests:
    """The sha256 of one upstream file without and with the patch."""

    before: str
    after: str


@dataclass(frozen=True)
class Manifest:
    """What a reader needs of a manifest to check the patch beside it, or to make it again."""

    release: str
    origin: Origin
    models: tuple[str, ...]
    layers: tuple[int, ...]
    files: Mapping[PurePosixPath, FileDigests]
    new_files: Mapping[PurePosixPath, str]
    patch_sha256: str


def manifest_bytes(
    patch_set: PatchSet,
    origin: Origin,
    tool_version: str,
    checks: Sequence[str],
    proof: Mapping[str, Any] | None = None,
    classes: Sequence[ClassFate] = (),
) -> bytes:
    """Return the manifest; the same inputs always give the same bytes. `proof` says how far the patch is proved."""
    plan = patch_set.plan
    return _in_lines(
        {
            "schema": SCHEMA,
            "tool": f"auxtap {tool_version}",
            "release": plan.release,
            "origin": origin.kind,
            "source_digest": origin.source_digest,
            "patch_sha256": patch_set.digest,
            "models": list(plan.models),
            "default_layers": _layers(plan),
            "files": [
                {
                    "path": str(change.path),
                    "sha256_before": change.before_sha256,
                    "sha256_after": change.after_sha256,
                    "inserted_lines": list(inserted_lines(change.insertions)),
                }
                for change in patch_set.changes
            ],
            "insertions": [
                {
                    "kind": insertion.kind,
                    "path": str(insertion.path),
                    "scope": insertion.scope,
                    "anchor": insertion.anchor,
                    "before_line": insertion.line,
                    "text": insertion.code,
                }
                for insertion in plan.insertions
            ],
            "new_files": [{"path": str(file.path), "sha256": sha256_bytes(file.data)} for file in plan.new_files],
            "hazards": [
                {
                    "hazard": decision.hazard,
                    "decision": decision.verdict,
                    "flags": list(decision.flags),
                    "reason": decision.reason,
                }
                for decision in plan.decisions
            ],
            "server_flags": list(plan.server_flags),
            "classes": _classes(classes),
            "checks": list(checks),
            "proof": dict(proof or {}),
        }
    )


def _in_lines(value: object) -> bytes:
    """Return JSON in which what is short stands on one line: an entry of a list is a line of a diff."""
    return f"{_folded(value, '')}\n".encode()


def _folded(value: object, indentation: str) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if len(line) <= _MAX_LINE or not isinstance(value, list | dict):
        return line
    inner = f"{indentation}  "
    if isinstance(value, dict):
        items = [f"{inner}{json.dumps(key)}: {_folded(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indentation}}}"
    return "[\n" + ",\n".join(f"{inner}{_folded(item, inner)}" for item in value) + f"\n{indentation}]"


def _classes(classes: Sequence[ClassFate]) -> dict[str, object]:
    ways = {way: [fate.name for fate in classes if fate.way == way] for way in ("native", "arm")}
    reasons = {way: {fate.name: fate.reason for fate in classes if fate.way == way} for way in ("loop", "refused")}
    return {**ways, **reasons}


def _layers(plan: CapturePlan) -> dict[str, object]:
    return {
        "capture_index": list(plan.layers),
        "transformers_hidden_states": list(plan.layers),
        "draft_config_ids": draft_ids_by_class(plan),
        "meaning": "capture index i is the state that enters decoder block i; final states are the server's to choose",
    }


def draft_ids_by_class(plan: CapturePlan) -> dict[str, dict[str, list[int] | None]]:
    """Return which ids make each setter choose the plan's layers, by class and setter; None where no list does.

    A class has no row when SGLang can be given no ids for it, or when its setters are not understood.
    """
    found: dict[str, dict[str, list[int] | None]] = {}
    for setter in plan.setters:
        ids = find_draft_ids(plan.layers, setter.rules, None)
        found.setdefault(setter.model, {})[setter.name] = None if ids is None else list(ids)
    return found


def read_manifest(data: bytes, name: str) -> Manifest:
    """Read a manifest that the tool wrote.

    Raises:
        PatchError: it is no manifest, or one of another schema.
    """
    try:
        record: Any = json.loads(data)
        if record["schema"] != SCHEMA:
            raise PatchError(f"{name} has schema {record['schema']!r}, not {SCHEMA}", hint="run auxtap patch again")
        return Manifest(
            release=str(record["release"]),
            origin=Origin(str(record["origin"]), str(record["source_digest"])),
            models=tuple(str(model) for model in record["models"]),
            layers=tuple(int(layer) for layer in record["default_layers"]["capture_index"]),
            files={
                PurePosixPath(entry["path"]): FileDigests(entry["sha256_before"], entry["sha256_after"])
                for entry in record["files"]
            },
            new_files={PurePosixPath(entry["path"]): str(entry["sha256"]) for entry in record["new_files"]},
            patch_sha256=str(record["patch_sha256"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise PatchError(f"{name} is not a manifest of auxtap: {what}", hint="run auxtap patch again") from None
