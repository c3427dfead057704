"""Which ids a draft model's configuration has to name so that a setter of SGLang chooses given layers.

The same list means other layers by release and by class. What a setter does to ids is read from its source as rules;
here they are run, and a list counts only when they make of it just the layers that are wanted.
"""

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

# What configurations and models call the number of blocks.
LAYER_COUNT_NAMES = frozenset({"num_layers", "num_hidden_layers", "n_layers", "n_layer"})
OTHERWISE = "otherwise"
# The setter of EAGLE-3; others are those of other kinds of draft models.
EAGLE3_SETTER = "set_eagle3_layers_to_capture"

OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True)
class OffsetRule:
    """What a setter adds to each given id, and under which condition.

    Without a condition it always does; `otherwise` stands for the rules before it not applying. `offset` None: it does
    what was not understood.
    """

    offset: int | None
    condition: str | None = None

    def to_json(self) -> dict[str, str | int | bool | None]:
        """Return it as data."""
        return {"offset": self.offset, "condition": self.condition}


def find_draft_ids(
    entries: Sequence[int], rules: Sequence[OffsetRule], num_layers: int | None
) -> tuple[int, ...] | None:
    """Return ids that a setter with these rules makes into the entries of its list; None when no list of ids does.

    Ascending ids are preferred. A setter may look at the first of them, so each may have to stand first; the order of
    the list changes nothing else, because states are captured in the order of the blocks. Without `num_layers` only
    ids that are right for every number of blocks count.
    """
    wanted = sorted(entries)
    for offset in dict.fromkeys(rule.offset for rule in rules if rule.offset is not None):
        ids = [entry - offset for entry in wanted]
        usable = bool(ids) and ids[0] >= 0 and (num_layers is not None or offset >= 0)
        for order in _orders(ids) if usable else ():
            chosen = chosen_layers(order, rules, num_layers)
            if chosen is not None and sorted(chosen) == wanted:
                return order
    return None


def _orders(ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for first in range(len(ids)):
        yield (ids[first], *ids[:first], *ids[first + 1 :])


def chosen_layers(ids: Sequence[int], rules: Sequence[OffsetRule], num_layers: int | None) -> tuple[int, ...] | None:
    """Run a setter's rules on ids; None when they do not tell what it makes of them.

    Without `num_layers` there are more blocks than the highest id.
    """
    if sum(rule.condition is None for rule in rules) > 1:
        return None
    for rule in rules:
        if rule.condition is None or rule.condition == OTHERWISE:
            applies: bool | None = True
        else:
            applies = evaluate_condition(rule.condition, tuple(ids), num_layers)
        if applies is None:
            return None
        if applies:
            return None if rule.offset is None else tuple(number + rule.offset for number in ids)
    return None


def evaluate_condition(source: str, ids: tuple[int, ...], num_layers: int | None) -> bool | None:
    """Answer `layer_ids and layer_ids[0] == 1` for given ids; None for what is not understood."""
    try:
        value = _value(ast.parse(source, mode="eval").body, ids, num_layers)
    except (SyntaxError, IndexError, ValueError):
        return None
    return None if value is None else bool(value)


def _value(node: ast.expr, ids: tuple[int, ...], num_layers: int | None) -> int | tuple[int, ...] | None:
    if isinstance(node, ast.BoolOp):
        values = [_value(item, ids, num_layers) for item in node.values]
        if any(value is None for value in values):
            return None
        join = all if isinstance(node.op, ast.And) else any
        return int(join(bool(value) for value in values))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.NotEq):
        equal = _equal(node.left, node.comparators[0], ids, num_layers)
        return None if equal is None else int(equal is isinstance(node.ops[0], ast.Eq))
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.value, ast.Name):
        return ids[node.slice.value] if type(node.slice.value) is int else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("max", "min"):
        return max(ids) if node.func.id == "max" else min(ids)
    if isinstance(node, ast.Name) and node.id not in LAYER_COUNT_NAMES:
        return ids
    return evaluate_number(node, num_layers)


def _equal(left: ast.expr, right: ast.expr, ids: tuple[int, ...], num_layers: int | None) -> bool | None:
    one, other = _value(left, ids, num_layers), _value(right, ids, num_layers)
    if one is not None and other is not None:
        return one == other
    known, missing = (one, right) if other is None else (other, left)
    # Of an unknown number of blocks it is known that no id reaches it.
    counts = isinstance(missing, ast.Name | ast.Attribute) and num_layers is None
    return False if counts and isinstance(known, int) and known <= max(ids) else None


def evaluate_number(node: ast.expr, num_layers: int | None, counts: Sequence[str] = ()) -> int | None:
    """Evaluate whole numbers, the names of the number of blocks (`counts` too), and + - * // of them; else None."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return num_layers if name in LAYER_COUNT_NAMES or name in counts else None
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = evaluate_number(node.left, num_layers, counts), evaluate_number(node.right, num_layers, counts)
        if left is None or right is None or (right == 0 and isinstance(node.op, ast.FloorDiv)):
            return None
        return OPERATORS[type(node.op)](left, right)
    return None
