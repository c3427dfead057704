"""Whether a format can hold what a store has, and which command would give what it lacks."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from auxtap.core.errors import UsageError
from auxtap.extraction.export.contract import ANY_NUMBER, TrainerFormat
from auxtap.extraction.spool.topology import open_replicas, read_topology
from auxtap.extraction.store.store_manifest import StoreManifest, final_tensors
from auxtap.tap.protocol import FINAL, FINAL_PRENORM

_MEANING = {FINAL: "post-norm", FINAL_PRENORM: "pre-norm"}


@dataclass(frozen=True)
class Selection:
    """The states that are exported; `everything` when they are all that the store has."""

    layers: tuple[int, ...]
    finals: tuple[str, ...]
    everything: bool


@dataclass(frozen=True)
class Holdings:
    """What there is to export: the states of a store, or those that a server will give."""

    what: str
    layers: tuple[int, ...]
    final: str
    model_path: str
    store: Path | None = None


def holdings_of_store(store: Path, manifest: StoreManifest) -> Holdings:
    """Return what a store has."""
    return Holdings(f"store {store}", manifest.layers, manifest.final, manifest.model.path, store)


def holdings_of_server(spools: Sequence[Path]) -> Holdings:
    """Return what the server behind spools will give; replicas behind a router all give the same.

    Raises:
        ExtractionError: no writer has announced itself there.
    """
    with open_replicas(spools) as replicas:
        head = read_topology(replicas[0]).head
    return Holdings("the server", tuple(sorted(head.all_layers)), head.final, head.model_path)


def select_states(has: Holdings, target: TrainerFormat, wanted: tuple[int, ...] = ()) -> Selection:
    """Choose the states that a format is given; `wanted` are layers, all of them when empty.

    Raises:
        UsageError: there is not what the format needs; the hint is the command that gives it.
    """
    layers = _select_layers(has, target, wanted)
    finals = _select_finals(has, target, layers)
    everything = (layers, finals) == (has.layers, final_tensors(has.final))
    return Selection(layers, finals, everything)


def _select_layers(has: Holdings, target: TrainerFormat, wanted: tuple[int, ...]) -> tuple[int, ...]:
    missing = sorted(set(wanted) - set(has.layers))
    if missing:
        raise UsageError(
            f"{has.what} has layers {_list(has.layers)}, not {_list(missing)}",
            hint=_serve(has, layers=tuple(sorted({*has.layers, *wanted}))),
        )
    layers = tuple(sorted(wanted)) or has.layers
    needed = target.needs.n_layers
    if needed == 0:
        return ()
    if needed == ANY_NUMBER:
        if not layers:
            raise UsageError(f"format {target.name} needs auxiliary layers, and {has.what} has none", hint=_serve(has))
        return layers
    if len(layers) == needed:
        return layers
    reason = f"format {target.name} holds {needed} layers; {len(layers)} are chosen of {has.what}: {_list(layers)}"
    if len(has.layers) >= needed:
        store = shlex.quote(str(has.store or "STORE"))
        few = ",".join(map(str, has.layers[:needed]))
        command = f"auxtap export {store} --format {target.name} --out DIR --layers {few}"
        raise UsageError(reason, hint=f"{command} (or another {needed} of them)")
    raise UsageError(reason, hint=_serve(has))


def _select_finals(has: Holdings, target: TrainerFormat, layers: tuple[int, ...]) -> tuple[str, ...]:
    usable = tuple(name for name in target.needs.finals if name in final_tensors(has.final))
    if not usable:
        needed = " or ".join(_MEANING[name] for name in target.needs.finals)
        raise UsageError(
            f"format {target.name} needs the {needed} final state, and {has.what} has the {has.final} one; "
            "neither can be had from the other exactly",
            hint=_serve(has, layers=layers, final="both"),
        )
    return usable if target.needs.all_finals else usable[:1]


def _serve(has: Holdings, layers: tuple[int, ...] = (), final: str = "") -> str:
    """Return the server that gives what is missing; the extraction is run against it again."""
    chosen = ",".join(map(str, layers)) or "A,B,C"
    command = f"auxtap serve --worktree DIR --model-path {shlex.quote(has.model_path)} --layers {chosen}"
    return f"{command} --final {final or has.final}, then auxtap extract into a new store"


def _list(layers: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, layers)) or "none"
