"""Work out which layers a setter captures: its offset rule, its defaults, and what they come to."""

import ast
import operator
from collections.abc import Callable, Iterable, Sequence

from auxtap.tracer.flow.evidence import evidence_of
from auxtap.tracer.report.entries import CaptureSite, FileTrace
from auxtap.tracer.report.trace_report import Flow, LayerRule, OffsetRule
from auxtap.tracer.source.names import LAYER_COUNT_NAMES

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_SETS = {"layers_set", "setter_call"}


def find_layer_rules(
    traces: Iterable[FileTrace], flows: Sequence[Flow], num_layers: int | None
) -> tuple[LayerRule, ...]:
    """Return the rule of each setter that sets layers, in source order."""
    ways = {(link.file, link.name): flow for flow in reversed(flows) for link in flow.links}
    rules: list[LayerRule] = []
    for trace in traces:
        for setter in trace.capture_sites:
            if setter.role != "setter":
                continue
            way = ways.get((trace.file, setter.scope.split(".")[0]))
            rule = _layer_rule(trace, setter, way, num_layers)
            if rule is not None:
                rules.append(rule)
    return tuple(rules)


def _layer_rule(trace: FileTrace, setter: CaptureSite, way: Flow | None, num_layers: int | None) -> LayerRule | None:
    sets = [site for site in trace.capture_sites if site.role in _SETS and site.scope == setter.scope]
    fixed = [site for site in sets if site.value is not None and _is_written_out(site.value)]
    given = [site for site in sets if site.value is not None and site not in fixed]
    made = any(_is_mapped(site) or _is_copied(site) for site in given)
    if not fixed and not made:
        return None
    mapped = [site for site in given if _is_mapped(site) or site.condition is not None or not made]
    offsets = tuple(dict.fromkeys(OffsetRule(site.offset, site.condition) for site in mapped or given))
    numbers = {rule.offset for rule in offsets}
    default = fixed[0].value if fixed else None
    shift = None if way is None else way.shift
    entries = None if default is None else resolve_layers(default, num_layers, fixed[0].counts)
    resolved = None if entries is None else tuple(entry + (shift or 0) for entry in entries)
    return LayerRule(
        scope=setter.scope,
        offset=numbers.pop() if len(numbers) == 1 else None,
        default=default,
        resolved=resolved,
        evidence=tuple(evidence_of(trace, site) for site in (setter, *sets)),
        offsets=offsets,
        side=None if way is None else way.side,
        shift=shift,
        reaches_end=way is not None and way.reaches_end,
        draft_ids=None if entries is None else find_draft_ids(entries, offsets, num_layers),
    )


def find_draft_ids(
    entries: tuple[int, ...], offsets: Sequence[OffsetRule], num_layers: int | None
) -> tuple[int, ...] | None:
    """Return the ids that a setter makes into these entries of its list; None when no rule does, or is understood.

    A rule without a condition always applies; `otherwise` stands for the rules before it not applying.
    """
    for number, rule in enumerate(offsets):
        if rule.offset is None:
            continue
        ids = tuple(entry - rule.offset for entry in entries)
        if rule.condition == "otherwise":
            earlier = [evaluate_condition(item.condition or "", ids, num_layers) for item in offsets[:number]]
            applies = all(answer is False for answer in earlier)
        else:
            applies = rule.condition is None or evaluate_condition(rule.condition, ids, num_layers) is True
        if applies:
            return ids
    return None


def evaluate_condition(source: str, ids: tuple[int, ...], num_layers: int | None) -> bool | None:
    """Answer `layer_ids and layer_ids[0] == 1` for given ids; None for what is not understood."""
    try:
        value = _condition_value(_parse(source), ids, num_layers)
    except (SyntaxError, IndexError, ValueError):
        return None
    return None if value is None else bool(value)


def _condition_value(node: ast.expr, ids: tuple[int, ...], num_layers: int | None) -> int | tuple[int, ...] | None:
    if isinstance(node, ast.BoolOp):
        values = [_condition_value(item, ids, num_layers) for item in node.values]
        if any(value is None for value in values):
            return None
        join = all if isinstance(node.op, ast.And) else any
        return int(join(bool(value) for value in values))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.NotEq):
        left = _condition_value(node.left, ids, num_layers)
        right = _condition_value(node.comparators[0], ids, num_layers)
        if left is None or right is None:
            return None
        return int((left == right) is isinstance(node.ops[0], ast.Eq))
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.value, ast.Name):
        return ids[node.slice.value] if type(node.slice.value) is int else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("max", "min"):
        return max(ids) if node.func.id == "max" else min(ids)
    if isinstance(node, ast.Name) and node.id not in LAYER_COUNT_NAMES:
        return ids
    return _evaluate(node, num_layers)


def _is_written_out(value: str) -> bool:
    """Tell whether the layers are written out (`[2, num_layers // 2]`), in a set or tuple too."""
    return isinstance(_parse(value), ast.List | ast.Tuple | ast.Set)


def _is_copied(site: CaptureSite) -> bool:
    """Tell whether the given ids are made into a collection of their own, and so arrive here."""
    return site.value is not None and isinstance(_parse(site.value), ast.Call)


def _is_mapped(site: CaptureSite) -> bool:
    """Tell whether the list is made from given ids (`[i + 1 for i in ids]`) rather than written out."""
    return site.value is not None and isinstance(_parse(site.value), ast.ListComp | ast.SetComp)


def _parse(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def resolve_layers(source: str, num_layers: int | None, counts: Sequence[str] = ()) -> tuple[int, ...] | None:
    """Evaluate a written-out list such as `[2, num_layers // 2, num_layers - 3]` for a number of blocks.

    Knows whole numbers, the usual names of the number of blocks and those in `counts`, and + - * // only; anything
    else gives None.
    """
    expression = _parse(source)
    if not isinstance(expression, ast.List):
        return None
    values = [_evaluate(item, num_layers, counts) for item in expression.elts]
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None


def _evaluate(node: ast.expr, num_layers: int | None, counts: Sequence[str] = ()) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return num_layers if name in LAYER_COUNT_NAMES or name in counts else None
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _evaluate(node.left, num_layers, counts), _evaluate(node.right, num_layers, counts)
        if left is None or right is None or (right == 0 and isinstance(node.op, ast.FloorDiv)):
            return None
        return _OPERATORS[type(node.op)](left, right)
    return None
