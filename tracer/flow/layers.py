"""Work out which layers a setter captures: its offset rule, its defaults, and what they come to."""

import ast
from collections.abc import Iterable, Sequence

from auxtap.core.draft_ids import OffsetRule, evaluate_number, find_draft_ids
from auxtap.tracer.flow.evidence import evidence_of
from auxtap.tracer.report.entries import CaptureSite, FileTrace
from auxtap.tracer.report.trace_report import Flow, LayerRule

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
    fixed = [site for site in sets if site.value is not None and is_written_out(site.value)]
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


def is_written_out(value: str) -> bool:
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
    values = [evaluate_number(item, num_layers, counts) for item in expression.elts]
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None
