"""Find what a name stands for where it is used: a function, a class or a module of the tree, imports followed."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.flow.classes import ClassIndex, FoundClass
from auxtap.tracer.source.fragments import Fragment, last_name
from auxtap.tracer.source.walk import find

_PYTHON = PurePosixPath("python")
_INIT = "__init__.py"


@dataclass(frozen=True, eq=False)
class FoundFunction:
    """A function, the fragment it stands in, its file, and the class that it is a method of.

    `reader` is the class of the object that it is read for, where that inherits it.
    """

    file: PurePosixPath
    fragment: Fragment
    node: cst.FunctionDef
    owner: FoundClass | None = None
    reader: FoundClass | None = None

    @property
    def scope(self) -> str:
        """The qualified name."""
        return f"{self.owner.name}.{self.node.name.value}" if self.owner else self.node.name.value


@dataclass(frozen=True, eq=False)
class Names:
    """Looks names up in the files of one tree, each question once."""

    index: ClassIndex
    _imports: dict[tuple[PurePosixPath, str], tuple[PurePosixPath, str] | None] = field(default_factory=dict)
    _functions: dict[tuple[PurePosixPath, str, str], FoundFunction | None] = field(default_factory=dict)

    def method(self, found: FoundClass, name: str) -> FoundFunction | None:
        """Return the method that an object of a class has, inherited ones included."""
        return next((item for owner in self.lineage(found) if (item := self.own(owner.file, owner.name, name))), None)

    def inherited(self, found: FoundClass, owner: FoundClass, name: str) -> FoundFunction | None:
        """Return the method that `super()` finds in a method of `owner`, for an object of class `found`."""
        lineage = self.lineage(found)
        behind = lineage[lineage.index(owner) + 1 :] if owner in lineage else []
        return next((item for base in behind if (item := self.own(base.file, base.name, name))), None)

    def lineage(self, found: FoundClass) -> list[FoundClass]:
        """Return the class and its bases that the tree defines, imports followed, nearest first."""
        lineage = [found]
        for current in lineage:
            bases = [self.find_class(base, current.file) for base in current.outline.bases]
            lineage += [base for base in bases if base is not None and base not in lineage]
        return lineage

    def heirs(self, found: FoundClass, method: str) -> list[FoundClass]:
        """Return the classes of model files that inherit from a class and have this method from it."""
        mark = found.name.encode()
        heirs: list[FoundClass] = []
        for path in self.index.model_files:
            if mark in self.index.tree.files[path]:
                inheriting = (each for each in self.index.classes_of(path).values() if found.name in each.outline.bases)
                heirs += [each for each in inheriting if self.find_class(found.name, path) == found]
        bare = [each for each in heirs if each != found and method not in each.outline.methods]
        return [*bare, *(further for each in bare for further in self.heirs(each, method))]

    def own(self, path: PurePosixPath, class_name: str, name: str) -> FoundFunction | None:
        """Return a method that a class defines itself, or a function of a module (for no class)."""
        key = path, class_name, name
        if key not in self._functions:
            self._functions[key] = self._find_own(path, class_name, name)
        return self._functions[key]

    def _find_own(self, path: PurePosixPath, class_name: str, name: str) -> FoundFunction | None:
        if path not in self.index.tree.files:
            return None
        source = self.index.source(path)
        owner = self.index.classes_of(path).get(class_name)
        within = (class_name,) if class_name else ()
        for unit in source.outline.units:
            if unit.name == name and unit.classes == within and not unit.is_class_header:
                fragment = source.fragment(unit)
                node = next(find(fragment.module, cst.FunctionDef, m.FunctionDef(name=m.Name(name))), None)
                return None if node is None else FoundFunction(path, fragment, node, owner)
        return None

    def find_class(self, name: str, near: PurePosixPath) -> FoundClass | None:
        """Return the class that a name of a file stands for."""
        local = self.index.classes_of(near).get(name)
        if local is not None:
            return local
        imported = self.imported(near, name)
        if imported is None:
            return None
        path, original = imported
        return self.index.classes_of(path).get(original)

    def find_function(self, name: str, near: PurePosixPath) -> FoundFunction | None:
        """Return the module-level function that a name of a file stands for."""
        local = self.own(near, "", name)
        if local is not None:
            return local
        imported = self.imported(near, name)
        return None if imported is None else self.own(imported[0], "", imported[1])

    def imported(self, near: PurePosixPath, name: str) -> tuple[PurePosixPath, str] | None:
        """Return the file and the name that a name was imported from; the name is empty where it is a module."""
        key = near, name
        if key not in self._imports:
            self._imports[key] = self._find_import(near, name, frozenset())
        return self._imports[key]

    def _find_import(
        self, near: PurePosixPath, name: str, seen: frozenset[PurePosixPath]
    ) -> tuple[PurePosixPath, str] | None:
        source = self.index.source(near)
        for unit in source.outline.units:
            if unit.name is None and not unit.classes and "import" in (text := source.text_of(unit)) and name in text:
                for node in find(source.fragment(unit).module, cst.ImportFrom):
                    found = self.target_of(node, name)
                    if found is not None:
                        return self._through_package(*found, seen | {near})
        return None

    def target_of(self, node: cst.ImportFrom, name: str) -> tuple[PurePosixPath, str] | None:
        """Return the file and name that one import gives a name to."""
        if isinstance(node.names, cst.ImportStar) or node.relative or node.module is None:
            return None
        for alias in node.names:
            given = last_name(alias.asname.name) if alias.asname is not None else last_name(alias.name)
            if given == name:
                original = last_name(alias.name) or ""
                folder = _PYTHON.joinpath(*_parts(node.module))
                module = self._module_at(folder / original)
                if module is not None:
                    return module, ""
                path = self._module_at(folder)
                return None if path is None else (path, original)
        return None

    def _module_at(self, place: PurePosixPath) -> PurePosixPath | None:
        candidates = (place.with_name(f"{place.name}.py"), place / _INIT)
        return next((path for path in candidates if path in self.index.tree.files), None)

    def _through_package(
        self, path: PurePosixPath, name: str, seen: frozenset[PurePosixPath]
    ) -> tuple[PurePosixPath, str] | None:
        """Follow a name that a package's own file only hands on."""
        defines = any(unit.name == name and not unit.classes for unit in self.index.source(path).outline.units)
        if not name or defines or path in seen:
            return path, name
        return self._find_import(path, name, seen) or (path, name)


def _parts(module: cst.Attribute | cst.Name) -> tuple[str, ...]:
    if isinstance(module, cst.Name):
        return (module.value,)
    inner = module.value
    return (*_parts(inner), module.attr.value) if isinstance(inner, cst.Attribute | cst.Name) else ()
