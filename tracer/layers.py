"""Work out which layers a setter captures: its offset rule, its defaults, and what they come to."""

import ast
import operator
from collections.abc import Callable, Iterable

from auxtap.tracer.evidence import evidence_of
from auxtap.tracer.report import CaptureSite, FileTrace, LayerRule

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_SETS = {"layers_set", "setter_call"}
LAYER_COUNT_NAMES = frozenset({"num_layers", "num_hidden_layers", "n_layers", "n_layer"})


def find_layer_rules(traces: Iterable[FileTrace], num_layers: int | None) -> tuple[LayerRule, ...]:
    """Return the rule of each setter that sets layers, in source order."""
    rules: list[LayerRule] = []
    for trace in traces:
        setters = [site for site in trace.capture_sites if site.role == "setter"]
        for setter in setters:
            sets = [s for s in trace.capture_sites if s.role in _SETS and s.scope == setter.scope]
            given = [site for site in sets if (site.value and not site.value.startswith("[")) or _is_mapped(site)]
            fixed = [site for site in sets if site not in given and site.value is not None]
            if not sets or (not fixed and not any(_is_mapped(site) for site in given)):
                continue
            default = fixed[0].value if fixed else None
            rules.append(
                LayerRule(
                    scope=setter.scope,
                    offset=given[0].offset if given else None,
                    default=default,
                    resolved=None if default is None else resolve_layers(default, num_layers),
                    evidence=tuple(evidence_of(trace, site) for site in (setter, *sets)),
                )
            )
    return tuple(rules)


def _is_mapped(site: CaptureSite) -> bool:
    """Tell whether the list is made from given ids (`[i + 1 for i in ids]`) rather than written out."""
    return site.value is not None and isinstance(_parse(site.value), ast.ListComp)


def _parse(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def resolve_layers(source: str, num_layers: int | None) -> tuple[int, ...] | None:
    """Evaluate a written-out list such as `[2, num_layers // 2, num_layers - 3]` for a number of blocks.

    Knows whole numbers, the usual names of the number of blocks, and + - * // only; anything else gives None.
    """
    expression = _parse(source)
    if not isinstance(expression, ast.List):
        return None
    values = [_evaluate(item, num_layers) for item in expression.elts]
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None


def _evaluate(node: ast.expr, num_layers: int | None) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return num_layers if name in LAYER_COUNT_NAMES else None
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _evaluate(node.left, num_layers), _evaluate(node.right, num_layers)
        if left is None or right is None or (right == 0 and isinstance(node.op, ast.FloorDiv)):
            return None
        return _OPERATORS[type(node.op)](left, right)
    return None
