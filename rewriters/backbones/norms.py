"""Find the final norm of a backbone: which attribute its forward calls on the state behind the loop."""

import ast
from collections.abc import Iterator

# `residual_batch.final_norm(hidden_states, forward_batch, self.norm)` (0.5.21: also `.norm`), and what it may be told
# besides.
_HELPERS, _HELPERS_OWNER = ("final_norm", "norm"), "residual_batch"
_HARMLESS = {"capture", "skip_empty"}


def find_final_norm(owner: ast.ClassDef, function: ast.FunctionDef, loop_line: int) -> str | None:
    """Return the attribute of the norm, None when it is not one alone or a hook would not see what it adds up.

    Recognised are `self.norm(state)`, `self.norm(state, residual)` of an RMS norm, which adds the two, and the helper
    that hands both to the norm.
    """
    name = function.args.args[0].arg if function.args.args else ""
    bound = dict(_bindings(owner, name))
    found: dict[str, bool] = {}
    for call in _calls_behind(function, loop_line):
        attribute = _attribute(call.func, name)
        if attribute is not None and _is_norm(attribute, bound):
            fits = not call.keywords and _adds_up(len(call.args), bound.get(attribute, set()))
            found[attribute] = fits and found.get(attribute, True)
        elif isinstance(call.func, ast.Attribute) and _attribute(call.func, _HELPERS_OWNER) in _HELPERS:
            handed = [_attribute(argument, name) for argument in call.args]
            for attribute in (each for each in handed if each is not None):
                fits = {keyword.arg for keyword in call.keywords} <= _HARMLESS
                found[attribute] = fits and found.get(attribute, True)
    if len(found) != 1:
        return None
    attribute, fits = next(iter(found.items()))
    return attribute if fits else None


def _calls_behind(function: ast.FunctionDef, loop_line: int) -> Iterator[ast.Call]:
    loops = (node for node in ast.walk(function) if isinstance(node, ast.For) and node.lineno == loop_line)
    end = max(node.end_lineno or 0 for node in loops)
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and node.lineno > end:
            yield node


def _attribute(node: ast.expr, owner: str) -> str | None:
    """Return `x` of `self.x`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == owner:
        return node.attr
    return None


def _bindings(owner: ast.ClassDef, name: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the attributes that a class binds to what calls return, with the names of what is called."""
    kinds: dict[str, set[str]] = {}
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            kind = ast.unparse(node.value.func).rpartition(".")[2]
            for attribute in (_attribute(target, name) for target in node.targets):
                if attribute is not None:
                    kinds.setdefault(attribute, set()).add(kind)
    yield from kinds.items()


def _is_norm(attribute: str, bound: dict[str, set[str]]) -> bool:
    """Tell whether an attribute is a norm by what it is bound to, by its name where a base class binds it."""
    if attribute in bound:
        return any(kind.endswith("Norm") for kind in bound[attribute])
    return "norm" in attribute.lower()


def _adds_up(n_arguments: int, kinds: set[str]) -> bool:
    return n_arguments == 1 or (n_arguments == 2 and (not kinds or any(kind.endswith("RMSNorm") for kind in kinds)))
