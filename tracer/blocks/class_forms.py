"""Say what about a class may alter what its code says: decorators, properties, hooks into attribute access."""

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.blocks.naming import FoundFunction, Names
from auxtap.tracer.flow.classes import FoundClass
from auxtap.tracer.report.readings import Objection, SourceLine
from auxtap.tracer.source.fragments import MODULE_SCOPE, Fragment
from auxtap.tracer.source.walk import find

_HOOKS = ("__getattr__", "__getattribute__", "__setattr__", "__call__", "__init_subclass__", "__new__")
# Attributes that must be what `__init__` or the tap has set.
_PLAIN = ("layers", "layers_to_capture", "_is_layer_to_capture")
_BOUND = (*_PLAIN, "forward")
_GRAD_MODES = m.Call(func=m.Attribute(value=m.Name("torch"), attr=m.Name("no_grad") | m.Name("inference_mode")))


def class_objections(names: Names, found: FoundClass) -> tuple[Objection, ...]:
    """Return what in a class, and in its bases of the tree, may make it behave otherwise than its functions say."""
    return tuple(item for owner in names.lineage(found) for item in _objections(names, owner))


def _objections(names: Names, owner: FoundClass) -> Iterator[Objection]:
    source = names.index.source(owner.file)
    for unit in source.outline.units:
        if unit.is_class_header and unit.name == owner.name and not unit.classes:
            yield from _of_header(names, owner, source.fragment(unit))
        elif unit.classes == (owner.name,) and unit.name in (*_HOOKS, *_PLAIN):
            fragment = source.fragment(unit)
            node = next(find(fragment.module, cst.FunctionDef), fragment.module)
            yield _objection(names, owner, fragment, node, f"{unit.name} of the class is code that is not followed")
        elif unit.name is None and any(name in source.text_of(unit) for name in _BOUND):
            yield from _rebindings(names, owner, source.fragment(unit))


def _of_header(names: Names, owner: FoundClass, fragment: Fragment) -> Iterator[Objection]:
    for node in find(fragment.module, cst.ClassDef):
        if node.decorators:
            yield _objection(names, owner, fragment, node.decorators[0], "the class is decorated")
        if node.keywords:
            yield _objection(names, owner, fragment, node, "the class is made by a metaclass or with keywords")


def _rebindings(names: Names, owner: FoundClass, fragment: Fragment) -> Iterator[Objection]:
    """Yield the statements of a class body or of the module that bind what the class's own code stands for."""
    of_class = m.Attribute(value=m.Name(owner.name))
    for assign in find(fragment.module, cst.Assign):
        for target in (item.target for item in assign.targets):
            bare = fragment.unit.classes == (owner.name,) and isinstance(target, cst.Name) and target.value in _BOUND
            if bare or m.matches(target, of_class):
                yield _objection(names, owner, fragment, assign, "it binds anew what the class's own code stands for")


def function_objections(names: Names, function: FoundFunction) -> tuple[Objection, ...]:
    """Return the decorators of a method that may change what it does."""
    return tuple(
        _objection(names, function.owner, function.fragment, item, "what this decorator makes of it is not known")
        for item in function.node.decorators
        if function.owner is not None and not m.matches(item.decorator, _GRAD_MODES)
    )


def _objection(names: Names, owner: FoundClass, fragment: Fragment, node: cst.CSTNode, reason: str) -> Objection:
    line = fragment.line_of(node)
    scope = fragment.scope_of(node)
    code = names.index.source(owner.file).code_at(line)
    return Objection(SourceLine(owner.file, line, owner.name if scope == MODULE_SCOPE else scope, code), reason)
