"""The names that make up the capture pipeline, and the fast test whether bytes hold one of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

# What configurations and models call the number of blocks.
LAYER_COUNT_NAMES = frozenset({"num_layers", "num_hidden_layers", "n_layers", "n_layer"})
# What the lines of auxtap's own patch are about.
GATE_NAME = "_auxtap"
STAGE_NAMES = frozenset({"is_last_rank", "is_first_rank"})


class Kind(Enum):
    """What a name of the family stands for."""

    STATES = "captured states"
    STATE = "one captured state"
    LAYERS = "layers to capture"
    LAYER_IDS = "layer ids of a draft model"
    FLAG = "capture flag"
    SETTER = "setter"
    MARK = "mark on a layer"
    COLLECTOR = "class of a collector"
    EXPECTED = "number of states expected"
    CONFIGURE = "function that switches capture on"
    PACK = "function that joins captured states"
    SETTING = "other attribute that a setter assigns"


_KINDS: dict[str, Kind] = {
    "aux_hidden_states": Kind.STATES,
    "captured_last_layer_outputs": Kind.STATES,
    "capture_gathered": Kind.STATES,
    "dspark_hidden_states": Kind.STATES,
    "dspark_aux_hidden_states": Kind.STATES,
    "aux_hidden_state": Kind.STATE,
    "layers_to_capture": Kind.LAYERS,
    "dspark_layers_to_capture": Kind.LAYERS,
    "_dflash_layers_to_capture": Kind.LAYERS,
    "eagle_aux_hidden_state_layer_ids": Kind.LAYER_IDS,
    "return_aux_hidden_state_layer_ids": Kind.LAYER_IDS,
    "capture_aux_hidden_states": Kind.FLAG,
    "eagle_use_aux_hidden_state": Kind.FLAG,
    "dflash_use_aux_hidden_state": Kind.FLAG,
    "enable_return_aux_hidden_states": Kind.FLAG,
    "_is_layer_to_capture": Kind.MARK,
    "AuxHiddenStatePacker": Kind.COLLECTOR,
    "AuxHiddenStateList": Kind.COLLECTOR,
    "AuxHiddenStateAccumulator": Kind.COLLECTOR,
    "expected_aux_hidden_states": Kind.EXPECTED,
    "init_aux_hidden_state_capture": Kind.CONFIGURE,
    "configure_aux_hidden_state_capture": Kind.CONFIGURE,
    "pack_aux_hidden_states": Kind.PACK,
}
_SETTER = re.compile(r"set_\w*layers_to_capture")

# Every name above contains one of these; a handful of substring searches beats one combined pattern.
_NEEDLES = (
    "aux_hidden_state",
    "layers_to_capture",
    "layer_to_capture",
    "AuxHiddenState",
    "captured_last_layer",
    "capture_gathered",
    "dspark_hidden_states",
    *sorted(STAGE_NAMES),
)


@dataclass(frozen=True)
class _Names:
    """The names in use: SGLang's, and those that a person added for a fork."""

    kinds: Mapping[str, Kind]
    needles: tuple[str, ...]
    byte_needles: tuple[bytes, ...]
    added: Mapping[str, Kind]


def _with(added: Mapping[str, Kind]) -> _Names:
    needles = (*_NEEDLES, *(name for name in added if not any(needle in name for needle in _NEEDLES)))
    return _Names({**added, **_KINDS}, needles, tuple(needle.encode() for needle in needles), added)


_names = _with({})


def add_names(added: Mapping[str, Kind]) -> None:
    """Add the names of a fork's own capture code, in place of any that were added before.

    They hold for the whole process, and are told once, before anything is traced. What a name of SGLang's means stays.
    """
    global _names
    _names = _with(added)


def names_digest() -> bytes:
    """Return what tells traces with added names from others; empty when none are added."""
    return "".join(f"{name}={kind.name}\n" for name, kind in sorted(_names.added.items())).encode()


def kind_of(name: str) -> Kind | None:
    """Return what `name` stands for, or None when it is not of the family."""
    kind = _names.kinds.get(name)
    if kind is None and _SETTER.fullmatch(name):
        return Kind.SETTER
    return kind


def may_hold_names(data: bytes) -> bool:
    """Tell cheaply whether a file can hold a name of the family or a stage test; never a false no."""
    return any(needle in data for needle in _names.byte_needles)


def holds_layers(text: str) -> bool:
    """Tell whether a text may name a list of captured layers, or a mark on a block; never a false no."""
    return any(name in text for name, kind in _KINDS.items() if kind in (Kind.LAYERS, Kind.MARK))


def count_names(text: str) -> int:
    """Count the whole-word occurrences of capture and stage names in `text`."""
    starts: set[int] = set()
    for needle in _names.needles:
        place = text.find(needle)
        while place >= 0:
            start, end = place, place + len(needle)
            while start > 0 and _is_word(text[start - 1]):
                start -= 1
            while end < len(text) and _is_word(text[end]):
                end += 1
            word = text[start:end]
            if word in STAGE_NAMES or kind_of(word) is not None:
                starts.add(start)
            place = text.find(needle, end)
    return len(starts)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def holds_word(text: str, word: str) -> bool:
    """Tell whether `text` holds `word` with no letter or digit beside it."""
    return word in text and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


def holds_name(text: str) -> bool:
    """Tell whether `text` holds a capture or stage name as a whole word."""
    return count_names(text) > 0
