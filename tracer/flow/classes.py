"""Find classes anywhere in a tree, with their bases and the models they are built of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

import libcst as cst
import libcst.matchers as m

from auxtap.core.errors import SourceError
from auxtap.core.source_tree import MODELS_ROOT, SourceTree
from auxtap.tracer.source.fragments import SourceFile, last_name
from auxtap.tracer.source.outline import ClassOutline
from auxtap.tracer.source.walk import NodeT, find

_WORD_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"

_SUPER_INIT = m.Call(func=m.Attribute(value=m.Call(func=m.Name("super")), attr=m.Name("__init__")))


@dataclass(frozen=True)
class FoundClass:
    """A class and the file it stands in."""

    file: PurePosixPath
    outline: ClassOutline

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.outline.name


@dataclass(frozen=True)
class Member:
    """`self.<attribute> = <class>(...)` in the class that wrote it."""

    attribute: str
    found: FoundClass
    owner: FoundClass


@dataclass(frozen=True, eq=False)
class ClassIndex:
    """Looks classes up by name, in the file that asks first and then among the models; reads files once."""

    tree: SourceTree
    skipped: dict[PurePosixPath, str] = field(default_factory=dict)
    _sources: dict[PurePosixPath, SourceFile] = field(default_factory=dict)
    _found: dict[str, FoundClass | None] = field(default_factory=dict)
    _members: dict[FoundClass, list[Member]] = field(default_factory=dict)

    def source(self, path: PurePosixPath) -> SourceFile:
        """Return one file, outlined.

        Raises:
            SourceError: it is not Python.
        """
        if path not in self._sources:
            self._sources[path] = SourceFile.read(path, self.tree.files[path])
        return self._sources[path]

    def classes_of(self, path: PurePosixPath) -> Mapping[str, FoundClass]:
        """Return the module-level classes of one file by name; none of a file that cannot be parsed."""
        try:
            classes = self.source(path).outline.classes
        except SourceError as error:
            self.skipped[path] = error.message
            return {}
        return {outline.name: FoundClass(path, outline) for outline in classes}

    def find(self, name: str, near: PurePosixPath) -> FoundClass | None:
        """Return the class of that name in `near`, else in a file of models/ that defines it: the one it imports."""
        local = self.classes_of(near).get(name)
        if local is not None:
            return local
        module = self.source(near).outline.imports.get(name) if near not in self.skipped else None
        for path in self._files_with_class.get(name, ()) if module else ():
            if path.stem == module and name in (classes := self.classes_of(path)):
                return classes[name]
        if name not in self._found:
            self._found[name] = self._search(name)
        return self._found[name]

    def _search(self, name: str, leaving: PurePosixPath | None = None) -> FoundClass | None:
        for path in self._files_with_class.get(name, ()):
            if path != leaving and name in (classes := self.classes_of(path)):
                return classes[name]
        return None

    @cached_property
    def _files_with_class(self) -> dict[str, list[PurePosixPath]]:
        """The model files with a line that looks like the head of a class; parsing tells whether it is one."""
        found: dict[str, list[PurePosixPath]] = {}
        for path in self.model_files:
            for line in (b"\n" + self.tree.files[path]).split(b"\nclass ")[1:]:
                name = line[: len(line) - len(line.lstrip(_WORD_BYTES))].decode(errors="replace")
                found.setdefault(name, []).append(path)
        return found

    @cached_property
    def model_files(self) -> tuple[PurePosixPath, ...]:
        """The files below models/, in order."""
        return tuple(sorted(path for path in self.tree.files if path.is_relative_to(MODELS_ROOT)))

    def lineage(self, found: FoundClass) -> list[FoundClass]:
        """Return the class and the bases that the tree defines, nearest first."""
        lineage = [found]
        for current in lineage:
            for base in current.outline.bases:
                parent = self.find(base, current.file)
                if parent is not None and all(parent.name != known.name for known in lineage):
                    lineage.append(parent)
        return lineage

    def members(self, found: FoundClass) -> list[Member]:
        """Return the models that `found` builds in `__init__` as attributes of self, inherited ones included."""
        if found not in self._members:
            self._members[found] = self._find_members(found)
        return self._members[found]

    def _find_members(self, found: FoundClass) -> list[Member]:
        members: dict[str, Member] = {}
        lineage = self.lineage(found)
        for owner in lineage:
            for attribute, call in self._built(owner):
                built = self._built_class(owner, lineage, call)
                if built is not None and attribute not in members:
                    members[attribute] = Member(attribute, built, owner)
            if "__init__" in owner.outline.methods and not self._calls_super(owner):
                break
        return list(members.values())

    def _built(self, owner: FoundClass) -> Iterator[tuple[str, cst.Call]]:
        target = m.AssignTarget(target=m.Attribute(value=m.Name("self")))
        for assign in self._find_in(owner, "__init__", cst.Assign, m.Assign(targets=[target])):
            if isinstance(assign.value, cst.Call):
                yield last_name(assign.targets[0].target) or "", assign.value

    def _built_class(self, owner: FoundClass, lineage: list[FoundClass], call: cst.Call) -> FoundClass | None:
        """Return the class that a call makes: the callee, what a factory method returns, or a class argument."""
        if m.matches(call.func, m.Attribute(value=m.Name("self"))):
            name = last_name(call.func) or ""
            return self._made_by(lineage, name) or self._class_attribute(lineage, name)
        if isinstance(call.func, cst.Name):
            argument = self._class_argument(lineage, owner, call.func.value)
            if argument is not None:
                return argument
        for node in (call.func, *(argument.value for argument in call.args)):
            found = self.find(last_name(node) or "", owner.file) if isinstance(node, cst.Name | cst.Attribute) else None
            if found is not None:
                return found
        return None

    def _made_by(self, lineage: list[FoundClass], method: str) -> FoundClass | None:
        maker = next((item for item in lineage if method in item.outline.methods), None)
        if maker is None:
            return None
        for found in self._find_in(maker, method, cst.Return):
            if isinstance(found.value, cst.Call):
                return self.find(last_name(found.value.func) or "", maker.file)
        return None

    def _class_argument(self, lineage: list[FoundClass], owner: FoundClass, parameter: str) -> FoundClass | None:
        """Return the class that a parameter of `__init__` names: what a subclass hands up, else its default."""
        handed = self._handed_up(lineage, owner, parameter)
        if handed is not None:
            return handed
        for param in self._find_in(owner, "__init__", cst.Param, m.Param(name=m.Name(parameter), default=m.Name())):
            return self.find(last_name(param.default) or "", owner.file) if param.default is not None else None
        return None

    def _handed_up(self, lineage: list[FoundClass], owner: FoundClass, parameter: str) -> FoundClass | None:
        """Return the class that the nearest subclass with an `__init__` gives to that of `owner`."""
        below = [item for item in lineage[: lineage.index(owner)] if "__init__" in item.outline.methods]
        names = [param.name.value for param in self._find_in(owner, "__init__", cst.Param)][1:]
        for call in self._find_in(below[-1], "__init__", cst.Call, _SUPER_INIT) if below else ():
            plain = [each.value for each in call.args if each.keyword is None and not each.star]
            given = dict(zip(names, plain, strict=False))
            given |= {each.keyword.value: each.value for each in call.args if each.keyword is not None}
            value = given.get(parameter)
            if isinstance(value, cst.Name):
                handed = self._class_argument(lineage, below[-1], value.value)
                return handed if handed is not None else self.find(value.value, below[-1].file)
        return None

    def _class_attribute(self, lineage: list[FoundClass], name: str) -> FoundClass | None:
        """Return the class that an attribute of a class body names (`body_cls = Model`)."""
        target = m.AssignTarget(target=m.Name(name))
        for owner in lineage:
            source = self.source(owner.file)
            for unit in source.outline.units:
                if unit.classes != (owner.name,) or unit.name is not None or name not in source.text_of(unit):
                    continue
                for assign in find(source.fragment(unit).module, cst.Assign, m.Assign(targets=[target])):
                    return self._named(owner.file, assign.value)
        return None

    def _named(self, path: PurePosixPath, node: cst.BaseExpression) -> FoundClass | None:
        """Return the class that an expression of a file names: `Model`, or `module.Model` of models/."""
        name = last_name(node) or ""
        if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name):
            module = MODELS_ROOT / f"{node.value.value}.py"
            return self.classes_of(module).get(name) if module in self.tree.files else None
        return self._imported(path, name)

    def _imported(self, path: PurePosixPath, name: str) -> FoundClass | None:
        """Return the class of that name, or of the name that an import of the file gives it."""
        source = self.source(path)
        alias = m.ImportAlias(asname=m.AsName(name=m.Name(name)))
        for unit in source.outline.units:
            if unit.name is None and not unit.classes and name in source.text_of(unit):
                for found in find(source.fragment(unit).module, cst.ImportAlias, alias):
                    return self._search(last_name(found.name) or "", leaving=path)
        return self.find(name, path)

    def _calls_super(self, owner: FoundClass) -> bool:
        return any(True for _ in self._find_in(owner, "__init__", cst.Call, _SUPER_INIT))

    def _find_in(
        self, owner: FoundClass, method: str, kind: type[NodeT], pattern: m.BaseMatcherNode | None = None
    ) -> Iterator[NodeT]:
        source = self.source(owner.file)
        for unit in source.outline.units:
            if unit.classes == (owner.name,) and unit.name == method:
                yield from source.fragment(unit).nodes_of(kind, pattern)

    def entry_classes(self, path: PurePosixPath) -> list[FoundClass]:
        """Return the classes that a model file offers to the registry as `EntryClass`."""
        classes = self.classes_of(path)
        if not classes:
            return []
        source = self.source(path)
        entries: list[FoundClass] = []
        for unit in source.outline.units:
            if unit.name is None and not unit.classes and source.code_at(unit.first_line).startswith("EntryClass"):
                for name in find(source.fragment(unit).module, cst.Name):
                    if name.value in classes:
                        entries.append(classes[name.value])
        return entries
