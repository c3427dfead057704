"""Which names a piece of code touches, and which it binds; reads that change nothing are left aside."""

from collections.abc import Container, Iterable, Iterator, Sequence

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.source.names import GATE_NAME
from auxtap.tracer.source.walk import children_of

_FACTS = frozenset({"shape", "device", "dtype", "ndim", "is_cuda"})
_QUESTIONS = frozenset({"size", "numel", "dim", "stride", "is_contiguous", "new_empty", "new_zeros", "element_size"})
_NONE_TEST = m.Comparison(
    left=m.Name(), comparisons=[m.ComparisonTarget(operator=m.Is() | m.IsNot(), comparator=m.Name("None"))]
)
_ASKED = m.Call(func=m.Name("isinstance") | m.Name("hasattr") | m.Name("len"), args=[m.Arg(m.Name()), m.ZeroOrMore()])
_FLAG = m.Call(
    func=m.Name("getattr"), args=[m.Arg(m.Name()), m.Arg(m.SimpleString()), m.Arg(m.Name("False") | m.Name("None"))]
)
# The nodes that bind a name, and where they hold it.
_BINDING: dict[type[cst.CSTNode], str] = {
    **dict.fromkeys(
        (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.CompFor, cst.Del, cst.NamedExpr), "target"
    ),
    **dict.fromkeys(
        (cst.AsName, cst.FunctionDef, cst.ClassDef, cst.NameItem, cst.ImportAlias, cst.MatchAs, cst.MatchStar), "name"
    ),
}
# Methods whose result may share the storage of what they are called on.
_VIEWS = frozenset({"view", "reshape", "detach", "contiguous", "to", "unsqueeze", "squeeze", "transpose", "flatten"})
_KEEPS = frozenset({"append", "appendleft", "add", "insert", "extend", "setdefault", "update", "put"})
_KEEPING = m.Attribute(attr=m.Name(m.MatchIfTrue(lambda name: name in _KEEPS)))
_SAME = frozenset({"data", "T", "mT", "tensors"})
# What reaches a function's names without naming them.
UNSEEN = frozenset({"locals", "exec", "eval", "vars", "globals", "setattr", "delattr"})


_OWN_LINE = m.If(
    test=m.Comparison(left=m.Name(GATE_NAME), comparisons=[m.ComparisonTarget(m.IsNot(), m.Name("None"))]), orelse=None
)


def is_own_line(node: cst.CSTNode) -> bool:
    """Tell whether a statement is a line that auxtap's own patch inserted, which only looks."""
    return isinstance(node, cst.If) and m.matches(node, _OWN_LINE)


def attribute_of(node: cst.CSTNode, owner: str) -> str | None:
    """Return `x` of `self.x`."""
    if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value == owner:
        return node.attr.value
    return None


def mentions(node: cst.CSTNode, names: Container[str], but: Container[cst.CSTNode] = ()) -> Iterator[cst.Name]:
    """Yield where a node touches one of `names` in a way that may change or bind it, or hand it on."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current in but:
            continue
        if isinstance(current, cst.Name):
            if current.value in names:
                yield current
        elif isinstance(current, cst.Attribute):
            if not (isinstance(current.value, cst.Name) and current.attr.value in _FACTS):
                waiting.append(current.value)
        elif isinstance(current, cst.Arg):
            waiting.append(current.value)
        elif isinstance(current, cst.Call):
            waiting.extend(_reached(current))
        elif not isinstance(current, cst.Comparison) or not m.matches(current, _NONE_TEST):
            waiting.extend(children_of(current))


def _reached(call: cst.Call) -> Sequence[cst.CSTNode]:
    """Return the parts of a call that are handed on; a question about a tensor hands on nothing of it."""
    if isinstance(call.func, cst.Call):
        # What a call returns is called: `getattr(state, "add_", None)(1)`.
        return (*call.func.args, *call.args, call.func.func)
    if isinstance(call.func, cst.Attribute):
        asks = isinstance(call.func.value, cst.Name) and call.func.attr.value in _QUESTIONS
        return call.args if asks else (call.func, *call.args)
    return call.args[1:] if m.matches(call, _ASKED | _FLAG) else (call.func, *call.args)


def touches(node: cst.CSTNode, names: Container[str], but: Container[cst.CSTNode] = ()) -> bool:
    """Tell whether a node touches one of `names`, what is in `but` left aside."""
    return next(mentions(node, names, but), None) is not None


def bound_names(node: cst.CSTNode) -> Iterator[str]:
    """Yield the plain names that a node, or anything within it, binds or unbinds."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        field = _BINDING.get(type(current))
        if field is not None and (target := getattr(current, field)) is not None:
            yield from _plain(target)
        waiting.extend(children_of(current))


def _plain(target: cst.CSTNode) -> Iterator[str]:
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from _plain(element.value)
    elif isinstance(target, cst.StarredElement):
        yield from _plain(target.value)


def storage_name(node: cst.CSTNode) -> str | None:
    """Return the name whose storage an expression may share: `x` of `x`, `x["a"]`, `x[1:]`, `x.view(2)`."""
    while True:
        if isinstance(node, cst.Name):
            return None if node.value in ("None", "True", "False") else node.value
        if isinstance(node, cst.Subscript):
            node = node.value
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _VIEWS:
            node = node.func.value
        elif isinstance(node, cst.Attribute) and node.attr.value in _SAME:
            node = node.value
        else:
            return None


def find_aliases(function: cst.CSTNode, names: Iterable[str], owner: str) -> frozenset[str]:
    """Return `names` and every name that an assignment of the function may make another name of their storage."""
    known = set(names)
    pairs: list[tuple[cst.CSTNode, cst.BaseExpression]] = []
    waiting = [function]
    while waiting:
        current = waiting.pop()
        if isinstance(current, cst.Assign):
            pairs += [(target.target, current.value) for target in current.targets]
        elif isinstance(current, cst.AnnAssign | cst.NamedExpr) and current.value is not None:
            pairs.append((current.target, current.value))
        elif isinstance(current, cst.Call) and m.matches(current.func, _KEEPING):
            keeper = cst.ensure_type(current.func, cst.Attribute).value
            pairs += [(keeper, argument.value) for argument in current.args]
        waiting.extend(children_of(current))
    shared = [(list(_plain(target)), storage_name(value)) for target, value in pairs]
    shared = [(targets, name) for targets, name in shared if name not in (None, owner)]
    grown = True
    while grown:
        before = len(known)
        for targets, name in shared:
            if name is not None and (name in known or known & set(targets)):
                known |= {name, *targets}
        grown = len(known) > before
    return frozenset(known)


def conjuncts(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the parts of a test that are joined by `and`."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*conjuncts(test.left), *conjuncts(test.right)]
    return [test]
