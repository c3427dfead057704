"""The final norm of a backbone: which attribute its forward calls on the state behind the loop."""

from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from auxtap.tracer.reading.mentions import attribute_of
from auxtap.tracer.source.walk import find

# `residual_batch.final_norm(hidden_states, forward_batch, self.norm)` (0.5.21: also `.norm`), and what it may be told
# besides.
_HELPERS, _HELPERS_OWNER = ("final_norm", "norm"), "residual_batch"
_HARMLESS = {"capture", "skip_empty"}


def find_final_norm(behind: Sequence[cst.CSTNode], owner: str, made: Mapping[str, frozenset[str]]) -> str | None:
    """Return the attribute of the norm, None when it is not one alone or a hook would not see what it adds up.

    Recognised are `self.norm(state)`, `self.norm(state, residual)` of an RMS norm, which adds the two, and the helper
    that hands both to the norm. `made` names the classes that each attribute of self is made of.
    """
    found: dict[str, bool] = {}
    for call in (call for statement in behind for call in find(statement, cst.Call)):
        for attribute, fits in _norms_of(call, owner, made):
            found[attribute] = fits and found.get(attribute, True)
    if len(found) != 1:
        return None
    attribute, fits = next(iter(found.items()))
    return attribute if fits else None


def _norms_of(call: cst.Call, owner: str, made: Mapping[str, frozenset[str]]) -> Iterator[tuple[str, bool]]:
    """Yield the norms that a call runs, and whether a hook sees what they are given."""
    attribute, keywords = attribute_of(call.func, owner), [item.keyword for item in call.args if item.keyword]
    if attribute is not None and _is_norm(attribute, made):
        yield attribute, not keywords and _adds_up(len(call.args), made.get(attribute, frozenset()))
    elif attribute_of(call.func, _HELPERS_OWNER) in _HELPERS:
        for handed in (attribute_of(item.value, owner) for item in call.args if item.keyword is None):
            if handed is not None:
                yield handed, {keyword.value for keyword in keywords} <= _HARMLESS


def _is_norm(attribute: str, made: Mapping[str, frozenset[str]]) -> bool:
    """Tell whether an attribute is a norm by what it is made of, by its name where a base class makes it."""
    if attribute in made:
        return any(kind.endswith("Norm") for kind in made[attribute])
    return "norm" in attribute.lower()


def _adds_up(n_arguments: int, kinds: frozenset[str]) -> bool:
    return n_arguments == 1 or (n_arguments == 2 and (not kinds or any(kind.endswith("RMSNorm") for kind in kinds)))


def adds_residual(
    behind: Sequence[cst.CSTNode], owner: str, made: Mapping[str, frozenset[str]], hidden: str, residual: str
) -> bool:
    """Tell whether an RMS norm of the backbone, which adds them, gets both the state and the residual behind the loop.

    Other norms take a residual too and hand it back untouched (`LayerNorm` of Cohere).
    """
    norms = {name for name, kinds in made.items() if any(kind.endswith("RMSNorm") for kind in kinds)}
    for call in (call for statement in behind for call in find(statement, cst.Call)):
        if attribute_of(call.func, owner) in norms:
            given = [item.value.value for item in call.args if isinstance(item.value, cst.Name)]
            if given[:2] == [hidden, residual]:
                return True
    return False
