"""Find the classes of what a class makes: the layers of a backbone, the communicator of a block."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

import libcst as cst
import libcst.matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.tracer.blocks.naming import FoundFunction, Names
from auxtap.tracer.blocks.values import Kind, Value
from auxtap.tracer.flow.classes import FoundClass
from auxtap.tracer.source.fragments import last_name
from auxtap.tracer.source.walk import find

_INIT, _FORWARD = "__init__", "forward"
_BOUNDARY_FILE = SRT_ROOT / "layers/layer_boundary/stage.py"
_BOUNDARY_CLASS, _BOUNDARY_SUFFIX, _BEFORE_ATTENTION = "StageBoundary", "_boundary", "attn_boundary"
_LISTS = m.Name("ModuleList") | m.Attribute(attr=m.Name("ModuleList"))
_MAKERS = frozenset({"make_layers", "make_pp_layers", "make_layers_non_pp"})
_MAX_DEPTH = 6


class NotKnownError(Exception):
    """Which class something has cannot be told."""


@dataclass(frozen=True, eq=False)
class Members:
    """Looks up what objects of a class hold; each question once."""

    names: Names
    _objects: dict[tuple[FoundClass, str], list[Value]] = field(default_factory=dict)
    _chosen: dict[tuple[FoundClass, str], list[FoundFunction]] = field(default_factory=dict)
    _passed: dict[str, list[tuple[FoundClass, FoundClass]]] = field(default_factory=dict)

    def objects(self, found: FoundClass, attribute: str) -> list[Value]:
        """Return the objects that `self.<attribute>` may be; none where that cannot be told."""
        key = found, attribute
        if key not in self._objects:
            try:
                self._objects[key] = self._find_objects(found, attribute)
            except NotKnownError:
                self._objects[key] = []
        return self._objects[key]

    def _find_objects(self, found: FoundClass, attribute: str) -> list[Value]:
        bound = list(self._bindings(found, attribute))
        if not bound:
            return []
        if attribute.endswith(_BOUNDARY_SUFFIX):
            boundary = self.names.index.classes_of(_BOUNDARY_FILE).get(_BOUNDARY_CLASS)
            label = "ATTENTION" if attribute == _BEFORE_ATTENTION else "FFN"
            return [] if boundary is None else [Value(Kind.OBJECT, label=label, found=boundary)]
        made = [item for function, value in bound for item in self.made(value, function, 0)]
        return [Value(Kind.OBJECT, label=attribute, found=item) for item in dict.fromkeys(made)]

    def _bindings(self, found: FoundClass, attribute: str) -> Iterator[tuple[FoundFunction, cst.BaseExpression]]:
        """Yield what `__init__` of the class, or the nearest that has one, and of the bases that it calls, binds."""
        for owner in self.names.lineage(found):
            function = self.names.own(owner.file, owner.name, _INIT)
            if function is None:
                continue
            yield from _bound_in(replace(function, reader=found), attribute)
            if not any(find(function.node, cst.Call, m.Call(func=m.Name("super")))):
                break

    def chosen(self, found: FoundClass, attribute: str) -> list[FoundFunction]:
        """Return the functions of which `self.<attribute> = Kind.get(...)` chooses one; none where it is not known."""
        key = found, attribute
        if key not in self._chosen:
            self._chosen[key] = self._find_chosen(found, attribute)
        return self._chosen[key]

    def _find_chosen(self, found: FoundClass, attribute: str) -> list[FoundFunction]:
        for owner in self.names.lineage(found):
            for fragment in self.names.index.source(owner.file).fragments_with(f"self.{attribute} =", owner.name):
                for value, targets in _assignments(fragment.module):
                    if any(m.matches(target, m.Attribute(attr=m.Name(attribute))) for target in targets):
                        return self._choices(value, owner)
        return []

    def _choices(self, value: cst.BaseExpression, owner: FoundClass) -> list[FoundFunction]:
        if not isinstance(value, cst.Call) or not m.matches(value.func, m.Attribute(value=m.Name())):
            return []
        kind = self._class_of(value.func, owner.file)
        chooser = None if kind is None else self.names.method(kind, last_name(value.func) or "")
        returned = [] if chooser is None else [item.value for item in find(chooser.node, cst.Return) if item.value]
        found: list[FoundFunction] = []
        for each in returned:
            named = self._class_of(each, chooser.file) if chooser is not None else None
            function = None if named is None else self.names.method(named, last_name(each) or "")
            if function is None:
                return []
            found.append(function)
        return found

    def _class_of(self, node: cst.BaseExpression, path: PurePosixPath) -> FoundClass | None:
        """Return the class `Kind` of `Kind.attribute`."""
        named = isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name)
        return (
            self.names.find_class(last_name(node.value) or "", path)
            if named and isinstance(node, cst.Attribute)
            else None
        )

    def layers(self, found: FoundClass, attribute: str = "layers") -> list[FoundClass]:
        """Return every class that an element of `self.layers` may have, in classes too that only inherit the forward.

        Raises:
            NotKnownError: that cannot be told.
        """
        readers = [found, *self.names.heirs(found, _FORWARD)]
        layers = [
            item
            for reader in readers
            for function, value in self._bindings(reader, attribute)
            for item in self._elements(value, function)
        ]
        if not layers:
            raise NotKnownError
        return list(dict.fromkeys(layers))

    def _elements(self, value: cst.BaseExpression, function: FoundFunction) -> list[FoundClass]:
        if not isinstance(value, cst.Call):
            raise NotKnownError
        if last_name(value.func) in _MAKERS:
            given = [argument.value for argument in value.args if argument.keyword is None]
            named = [item.value for item in value.args if m.matches(item, m.Arg(keyword=m.Name("layer_fn")))]
            makers = [*given[1:2], *named]
            return [item for maker in makers for item in self._made_by(maker, function, 0)]
        if m.matches(value.func, _LISTS) and len(value.args) == 1:
            listed = value.args[0].value
            if isinstance(listed, cst.ListComp | cst.GeneratorExp):
                return self.made(listed.elt, function, 0)
        raise NotKnownError

    def _made_by(self, maker: cst.BaseExpression, function: FoundFunction, depth: int) -> list[FoundClass]:
        """Return the classes of what a function makes that is handed to the one that makes all layers."""
        if isinstance(maker, cst.Lambda):
            return self.made(maker.body, function, depth)
        if isinstance(maker, cst.Name):
            local = next(find(function.node, cst.FunctionDef, m.FunctionDef(name=m.Name(maker.value))), None)
            if local is not None:
                return self._returned(replace(function, node=local), depth)
            found = self.names.find_function(maker.value, function.file)
            if found is not None:
                return self._returned(found, depth)
            return [
                item for value in _assigned(function, maker.value) for item in self._made_by(value, function, depth + 1)
            ]
        raise NotKnownError

    def _returned(self, function: FoundFunction, depth: int) -> list[FoundClass]:
        returned = [item.value for item in find(function.node, cst.Return) if item.value is not None]
        if not returned:
            raise NotKnownError
        return [item for value in returned for item in self.made(value, function, depth + 1)]

    def made(self, node: cst.BaseExpression, function: FoundFunction, depth: int) -> list[FoundClass]:
        """Return the classes of the object that an expression gives; none for None.

        Raises:
            NotKnownError: it may have another class.
        """
        if depth > _MAX_DEPTH:
            raise NotKnownError
        match node:
            case cst.Name(value="None"):
                return []
            case cst.IfExp():
                return [*self.made(node.body, function, depth), *self.made(node.orelse, function, depth)]
            case cst.Call():
                if isinstance(node.func, cst.Name) and (
                    maker := self.names.find_function(node.func.value, function.file)
                ):
                    return self._returned(maker, depth)
                return self.named(node.func, function, depth + 1)
            case cst.Name():
                values = _assigned(function, node.value)
                if values:
                    return [item for value in values for item in self.made(value, function, depth + 1)]
        raise NotKnownError

    def named(self, node: cst.BaseExpression, function: FoundFunction, depth: int) -> list[FoundClass]:
        """Return the classes that an expression may name.

        Raises:
            NotKnownError: it may name something else.
        """
        if depth > _MAX_DEPTH:
            raise NotKnownError
        match node:
            case cst.IfExp():
                return [*self.named(node.body, function, depth), *self.named(node.orelse, function, depth)]
            case cst.Name():
                return self._named(node.value, function, depth)
            case cst.Subscript():
                return self._in_table(node.value, function, depth)
            case cst.Attribute(value=cst.Name(value="self")) if function.reader is not None:
                value, owner = self._class_attribute(node.attr.value, function.reader)
                return self.named(value, self._body_of(owner, function), depth + 1)
            case cst.Call(func=cst.Name() as maker):
                found = self.names.find_function(maker.value, function.file)
                values = [] if found is None else [item.value for item in find(found.node, cst.Return)]
                if found is not None and values:
                    return [item for value in values if value for item in self.named(value, found, depth + 1)]
        raise NotKnownError

    def _named(self, name: str, function: FoundFunction, depth: int) -> list[FoundClass]:
        # `kind = kind or Default`
        instead = m.BooleanOperation(left=m.Name(name), operator=m.Or())
        values = _assigned(function, name)
        parameter = next(find(function.node.params, cst.Param, m.Param(name=m.Name(name))), None)
        found = [] if parameter is None else self._parameter(parameter, function, depth)
        for value in values:
            if not (isinstance(value, cst.BooleanOperation) and m.matches(value, instead)):
                found += self.named(value, function, depth + 1)
            elif not found:
                found += self.named(value.right, function, depth + 1)
        if found:
            return found
        named = self.names.find_class(name, function.file) or self._locally_imported(name, function)
        if named is None or parameter is not None:
            raise NotKnownError
        return [named]

    def _locally_imported(self, name: str, function: FoundFunction) -> FoundClass | None:
        for node in find(function.node, cst.ImportFrom):
            target = self.names.target_of(node, name)
            if target is not None:
                return self.names.index.classes_of(target[0]).get(target[1])
        return None

    def _in_table(self, table: cst.BaseExpression, function: FoundFunction, depth: int) -> list[FoundClass]:
        """Return the classes that are the values of a dict: of the function, the module or the class."""
        if depth > _MAX_DEPTH:
            raise NotKnownError
        if isinstance(table, cst.Dict):
            values = [element.value for element in table.elements if isinstance(element, cst.DictElement)]
            return [item for value in values for item in self.named(value, function, depth + 1)]
        if isinstance(table, cst.Name):
            tables = [*_assigned(function, table.value), *_module_values(self.names, function.file, table.value)]
            found = [item for each in tables for item in self._in_table(each, function, depth + 1)]
            if found:
                return found
        if m.matches(table, m.Attribute(value=m.Name("self"))) and function.reader is not None:
            value, owner = self._class_attribute(last_name(table) or "", function.reader)
            return self._in_table(value, self._body_of(owner, function), depth + 1)
        raise NotKnownError

    @staticmethod
    def _body_of(owner: FoundClass, function: FoundFunction) -> FoundFunction:
        """Return a stand-in for the body of a class, in which names are looked up as in its module."""
        nothing = cst.FunctionDef(cst.Name(owner.name), cst.Parameters(), cst.IndentedBlock([]))
        return FoundFunction(owner.file, function.fragment, nothing, owner, function.reader)

    def _parameter(self, parameter: cst.Param, function: FoundFunction, depth: int) -> list[FoundClass]:
        """Return the classes that a parameter of `__init__` may name: what a subclass hands up, or its default."""
        name = parameter.name.value
        reader = function.reader
        if reader is None or function.owner is None:
            raise NotKnownError
        found = self._handed_up(name, reader, function, function.owner, depth)
        default = parameter.default
        if not found and default is not None and not m.matches(default, m.Name("None")):
            found = self.named(default, function, depth + 1)
        return [*found, *(handed for maker, handed in self._passed_as(name) if maker == reader)]

    def _handed_up(
        self, name: str, reader: FoundClass, above: FoundFunction, owner: FoundClass, depth: int
    ) -> list[FoundClass]:
        """Return what the nearest class below `owner` with an `__init__` hands up to it under this parameter."""
        lineage = self.names.lineage(reader)
        below = reversed(lineage[: lineage.index(owner)] if owner in lineage else [])
        function = next((item for each in below if (item := self.names.own(each.file, each.name, _INIT))), None)
        places = [item.name.value for item in above.node.params.params][1:]
        calls = m.Call(func=m.Attribute(attr=m.Name(_INIT)))
        for call in find(function.node, cst.Call, calls) if function is not None else ():
            plain = [each.value for each in call.args if each.keyword is None and not each.star]
            handed = dict(zip(places, plain, strict=False))
            handed |= {each.keyword.value: each.value for each in call.args if each.keyword is not None}
            if name in handed and function is not None:
                return self.named(handed[name], replace(function, reader=reader), depth + 1)
        return []

    def _passed_as(self, keyword: str) -> list[tuple[FoundClass, FoundClass]]:
        """Return each class of which a model file makes an object with this keyword, and the class that it is given."""
        if keyword not in self._passed:
            self._passed[keyword] = list(self._find_passed(keyword))
        return self._passed[keyword]

    def _find_passed(self, keyword: str) -> Iterator[tuple[FoundClass, FoundClass]]:
        index = self.names.index
        for path in index.model_files:
            if f"{keyword}=".encode() not in index.tree.files[path]:
                continue
            for fragment in index.source(path).fragments_with(keyword):
                for argument in fragment.nodes_of(cst.Arg, m.Arg(keyword=m.Name(keyword), value=m.Name())):
                    call = fragment.parent_of(argument)
                    handed = self.names.find_class(last_name(argument.value) or "", path)
                    maker = self.names.find_class(last_name(call) or "", path)
                    if handed is not None and maker is not None:
                        yield maker, handed

    def _class_attribute(self, name: str, reader: FoundClass) -> tuple[cst.BaseExpression, FoundClass]:
        """Return what the nearest class body binds to a name, and that class.

        Raises:
            NotKnownError: none does.
        """
        for owner in self.names.lineage(reader):
            source = self.names.index.source(owner.file)
            for unit in source.outline.units:
                if unit.classes == (owner.name,) and unit.name is None and name in source.text_of(unit):
                    fragment = source.fragment(unit)
                    for value, targets in _assignments(fragment.module):
                        if any(m.matches(target, m.Name(name)) for target in targets):
                            return value, owner
        raise NotKnownError


def _bound_in(function: FoundFunction, attribute: str) -> Iterator[tuple[FoundFunction, cst.BaseExpression]]:
    for value, targets in _assignments(function.node):
        for target in targets:
            elements = [item.value for item in target.elements] if isinstance(target, cst.Tuple) else [target]
            if any(m.matches(item, m.Attribute(value=m.Name("self"), attr=m.Name(attribute))) for item in elements):
                yield function, value


def _assignments(
    node: cst.CSTNode,
) -> Iterator[tuple[cst.BaseExpression, list[cst.BaseExpression]]]:
    for assign in find(node, cst.Assign):
        yield assign.value, [target.target for target in assign.targets]
    for annotated in find(node, cst.AnnAssign):
        if annotated.value is not None:
            yield annotated.value, [annotated.target]


def _assigned(function: FoundFunction, name: str) -> list[cst.BaseExpression]:
    """Return everything that a function binds to a local name."""
    return [
        value
        for value, targets in _assignments(function.node)
        if any(m.matches(target, m.Name(name)) for target in targets)
    ]


def _module_values(names: Names, path: PurePosixPath, name: str) -> Iterable[cst.BaseExpression]:
    """Yield what a module binds to a name of its own."""
    source = names.index.source(path)
    for unit in source.outline.units:
        if unit.name is None and not unit.classes and name in source.text_of(unit):
            fragment = source.fragment(unit)
            for value, targets in _assignments(fragment.module):
                if any(m.matches(target, m.Name(name)) for target in targets):
                    yield value
