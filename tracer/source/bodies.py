"""Questions about the statements of a branch."""

from collections.abc import Iterable

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.source.fragments import last_name, source_of
from auxtap.tracer.source.walk import find, walk

_SELF_ATTRIBUTE = m.Attribute(value=m.Name("self"))


def statements_of(suite: cst.BaseSuite) -> tuple[cst.CSTNode, ...]:
    """Return the statements of a suite, whichever way it is written."""
    return tuple(suite.body)


def assign_targets(nodes: Iterable[cst.CSTNode]) -> list[cst.CSTNode]:
    """Return what the statements assign to, tuples taken apart, in order."""
    targets: list[cst.CSTNode] = []
    for node in nodes:
        for found in walk(node):
            if not isinstance(found, cst.AssignTarget | cst.AnnAssign | cst.AugAssign):
                continue
            if isinstance(found.target, cst.Tuple):
                targets.extend(element.value for element in found.target.elements)
            else:
                targets.append(found.target)
    return targets


def assigned_attributes(nodes: Iterable[cst.CSTNode]) -> list[str]:
    """Return the attributes of self (`self.norm`) that the statements assign, in order, each once."""
    names = [source_of(target) for target in assign_targets(nodes) if m.matches(target, _SELF_ATTRIBUTE)]
    return list(dict.fromkeys(names))


def assigned_locals(nodes: Iterable[cst.CSTNode]) -> set[str]:
    """Return the local names that the statements assign."""
    return {target.value for target in assign_targets(nodes) if isinstance(target, cst.Name)}


def called_names(nodes: Iterable[cst.CSTNode]) -> set[str]:
    """Return the last names of everything that the statements call."""
    names = (last_name(call.func) for node in nodes for call in find(node, cst.Call))
    return {name for name in names if name}


def is_only_return(nodes: tuple[cst.CSTNode, ...]) -> bool:
    """Tell whether the statements are a bare `return`."""
    nothing = m.Return(value=None) | m.Return(value=m.Name("None"))
    return len(nodes) == 1 and m.matches(nodes[0], m.SimpleStatementLine(body=[nothing]))


def find_return(nodes: tuple[cst.CSTNode, ...]) -> cst.BaseExpression | None:
    """Return what the last of the statements returns, when it returns something."""
    if not nodes or not isinstance(nodes[-1], cst.SimpleStatementLine):
        return None
    last = nodes[-1].body[-1]
    if isinstance(last, cst.Return) and last.value is not None and not m.matches(last.value, m.Name("None")):
        return last.value
    return None
