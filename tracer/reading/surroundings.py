"""Object to what is done around a forward to the names that it goes by: builtins, its class, its blocks."""

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.reading.forwards import Forward
from auxtap.tracer.reading.loops import BLOCKS
from auxtap.tracer.reading.mentions import attribute_of, bound_names
from auxtap.tracer.reading.rounds import ObjectedError
from auxtap.tracer.source.fragments import Fragment, last_name
from auxtap.tracer.source.outline import Unit
from auxtap.tracer.source.walk import children_of, find, walk

_BUILTINS = ("range", "len", "enumerate", "getattr", "isinstance")
_NUMBERS = ("start_layer", "end_layer")
_MAKERS = frozenset(
    {"make_layers", "make_layers_non_pp", "make_pp_layers", "ModuleList", "get_pp_indices", "get_layers"}
)
# Functions that are given the blocks and leave them in their order: the last two (0.5.23) put a fused norm into blocks.
_READERS = frozenset(
    {"len", "enumerate", "zip", "iter", "list", "tuple", "install_terminal_finalize", "install_cutedsl_fusion"}
)
# A method is looked into only where its text may write one of them.
_WRITES = tuple(
    f".{name}{sign}" for name in (BLOCKS, *_NUMBERS) for sign in (" =", " +=", " -=", ".", "[", ",", ")", "\n", ";")
)
_OURS = frozenset({"forward", "__call__", "__init__", BLOCKS, *_NUMBERS, "layers_to_capture"})
# What a call of the class goes through: bound on an instance they stand in the forward's place, and hooks change it.
_CALLED = ("forward", "__call__", "__class__", "_call_impl")
_HOOKS = ("_hook", "add_module", "register_module", "__dict__", "setattr(", "vars(")
_MADE_OF = tuple(f".{name}" for name in (BLOCKS, *_NUMBERS))
_REORDERING = ("reverse", "sort", "insert", "pop", "extend", "clear", "remove", "__setitem__")
_OFFERED = m.Assign(targets=[m.AssignTarget(m.Name("EntryClass"))])


def check_surroundings(forward: Forward) -> None:
    """Object to bindings that make the forward mean something else than it says.

    Raises:
        ObjectedError: a builtin, the class, its blocks or their numbers are bound anew.
    """
    if shadowed := set(_BUILTINS) & set(bound_names(forward.function)):
        raise ObjectedError(forward.function, f"it binds {sorted(shadowed)[0]} anew")
    if shadowed := set(_BUILTINS) & {item.name.value for item in forward.parameters}:
        raise ObjectedError(forward.function, f"it binds {sorted(shadowed)[0]} anew")
    for unit in forward.source.outline.units:
        text = forward.source.text_of(unit)
        if not unit.classes and not unit.is_class_header:
            _check_module(forward, unit, text)
        elif unit.classes and any(made in text for made in _MADE_OF):
            _check_others(forward, unit)
        if unit.classes == (forward.class_name,) and unit.name != forward.name:
            _check_call(forward, unit, text)
            if any(written in text for written in _WRITES):
                _check_blocks(forward, forward.source.fragment(unit))


def _check_module(forward: Forward, unit: Unit, text: str) -> None:
    """Look at one statement or function of the module's own level."""
    named = [word for word in (*_BUILTINS, *_MAKERS) if word in text]
    if unit.name is not None:
        if unit.name in (*_BUILTINS, *_MAKERS):
            raise ObjectedError(forward.function, f"its module binds {unit.name} anew")
        return
    if named:
        module = forward.source.fragment(unit).module
        imports = any(isinstance(item, cst.Import | cst.ImportFrom) for item in walk(module))
        fixed = set(_BUILTINS) if imports else {*_BUILTINS, *_MAKERS}
        if shadowed := fixed & set(bound_names(module)):
            raise ObjectedError(forward.function, f"its module binds {sorted(shadowed)[0]} anew")
    if forward.class_name in text:
        module = forward.source.fragment(unit).module
        if any(_uses(statement, forward.class_name) for statement in module.body):
            raise ObjectedError(forward.function, f"what line {unit.first_line} does to its class is not followed")


def _uses(statement: cst.CSTNode, name: str) -> bool:
    """Tell whether a statement uses a class for more than to offer it, or to give it an attribute of another name."""
    if isinstance(statement, cst.For) and isinstance(statement.target, cst.Name):
        each = m.Name(statement.target.value)
        given = m.AssignTarget(m.Attribute(value=each, attr=m.Name(m.MatchIfTrue(lambda attr: attr not in _OURS))))
        uses = len(list(find(statement.body, cst.Name, each)))
        return uses != len(list(find(statement.body, cst.AssignTarget, given))) or _names(statement.body, name)
    offered = isinstance(statement, cst.SimpleStatementLine) and m.matches(statement.body[0], _OFFERED)
    return not offered and _names(statement, name)


def _names(node: cst.CSTNode, name: str) -> bool:
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if isinstance(current, cst.Name) and current.value == name:
            return True
        waiting.extend(() if isinstance(current, cst.Import | cst.ImportFrom) else children_of(current))
    return False


def _check_call(forward: Forward, unit: Unit, text: str) -> None:
    """Object to a method of the class that puts something before, behind or in place of its forward."""
    if not any(f".{name}" in text for name in _CALLED) and not any(word in text for word in _HOOKS):
        return
    module = forward.source.fragment(unit).module
    binds = any(attribute_of(item, "self") in _CALLED for target in _targets(module) for item in _elements(target))
    own = m.Call(func=m.Attribute(value=m.Name("self")))
    hooks = any(
        isinstance(call.func, cst.Attribute | cst.Name)
        and any(word.rstrip("(") in (last_name(call.func) or "") for word in _HOOKS)
        and m.matches(call, m.Call(func=m.Name(), args=[m.Arg(m.Name("self")), m.ZeroOrMore()]) | own)
        for call in find(module, cst.Call)
    )
    if binds or hooks:
        raise ObjectedError(forward.function, f"what line {unit.first_line} puts around a call of it is not followed")


def _check_others(forward: Forward, unit: Unit) -> None:
    """Object to a method that binds or reorders the blocks of what it holds, or their numbers."""
    module = forward.source.fragment(unit).module
    held = m.Attribute(value=m.Attribute(), attr=m.Name(m.MatchIfTrue(lambda name: name in (BLOCKS, *_NUMBERS))))
    bound = any(m.matches(item, held) for target in _targets(module) for item in _elements(target))
    turned = m.Call(func=m.Attribute(value=held, attr=m.Name(m.MatchIfTrue(lambda name: name in _REORDERING))))
    if bound or next(iter(find(module, cst.Call, turned)), None) is not None:
        raise ObjectedError(forward.function, f"what line {unit.first_line} does to the blocks is not followed")


def _targets(module: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for target in find(module, cst.AssignTarget):
        yield target.target
    for item in walk(module):
        if isinstance(item, cst.AugAssign | cst.AnnAssign):
            yield item.target


def _check_blocks(forward: Forward, fragment: Fragment) -> None:
    """Look at one method of the class: it may make the blocks and their numbers once, and read them."""
    bound: list[str] = []
    for statement in find(fragment.module, cst.SimpleStatementLine):
        for small in statement.body:
            names = [name for name, _ in _written(small)]
            if any(not fits for _, fits in _written(small)):
                raise ObjectedError(
                    forward.function, f"what line {fragment.line_of(small)} does to self.{names[0]} is not followed"
                )
            nested = any(isinstance(item, cst.If | cst.Else) for item in fragment.ancestors_of(small))
            bound += [] if nested else names
    if twice := [name for name in bound if bound.count(name) > 1]:
        raise ObjectedError(forward.function, f"self.{twice[0]} is bound twice where it is made")


def _written(node: cst.CSTNode) -> Iterator[tuple[str, bool]]:
    """Yield which of them a small statement writes, and whether it makes it in a known way."""
    if isinstance(node, cst.Assign):
        targets = [element for target in node.targets for element in _elements(target.target)]
        for name in (name for target in targets if (name := _ours(target)) is not None):
            again = any(_ours(item) is not None for item in find(node.value, cst.Attribute))
            made = name != BLOCKS or (isinstance(node.value, cst.Call) and last_name(node.value) in _MAKERS)
            yield name, made and not again
    elif isinstance(node, cst.AugAssign | cst.AnnAssign | cst.Del) and (name := _ours(node.target)) is not None:
        yield name, False
    value = getattr(node, "value", None)
    if value is not None and attribute_of(value, "self") == BLOCKS:
        yield BLOCKS, False
    for call in find(node, cst.Call):
        counts = last_name(call.func) in _READERS
        for argument in () if counts else call.args:
            if attribute_of(argument.value, "self") == BLOCKS:
                yield BLOCKS, False
        owner = attribute_of(call.func.value, "self") if isinstance(call.func, cst.Attribute) else None
        if isinstance(call.func, cst.Attribute) and owner in (BLOCKS, *_NUMBERS) and owner is not None:
            yield owner, call.func.attr.value in ("append", "named_parameters", "parameters", "modules")


def _elements(target: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from _elements(element.value)
    else:
        yield target


def _ours(node: cst.CSTNode) -> str | None:
    """Return the attribute of self that is one of them, or that an element is of."""
    while isinstance(node, cst.Subscript):
        node = node.value
    name = attribute_of(node, "self")
    return name if name in (BLOCKS, *_NUMBERS) else None
