"""Find anchors by structure: parsed files, named functions, statements of a body."""

import ast
import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

import libcst as cst
from libcst import matchers as m

from auxtap.core.errors import PatchError, SourceError
from auxtap.core.source_tree import SourceTree
from auxtap.rewriters.places.insertion import TAP_PACKAGE, Insertion, indented
from auxtap.tracer.reading.trees import Readings
from auxtap.tracer.report.readings import ModelReadings
from auxtap.tracer.source.fragments import SourceFile
from auxtap.tracer.source.names import GATE_NAME
from auxtap.tracer.source.outline import Unit

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
_OTHER_TREE = "auxtap trace shows what this tree holds; a release that is not recognised needs a new rewriter"


class ParsedFile:
    """One source file; its functions and statements are parsed when they are first asked for."""

    def __init__(self, path: PurePosixPath, data: bytes) -> None:
        """Outline the file; raises PatchError when it is not Python."""
        self.path = path
        self.data = data
        try:
            self._source = SourceFile.read(path, data)
        except SourceError as error:
            raise self._not_python(error) from None
        self._lines = data.split(b"\n")

    def _not_python(self, error: SourceError) -> PatchError:
        return PatchError(error.message, hint="check that the tree is whole")

    def refuse(self, kind: str, scope: str, looked_for: str, found: str) -> PatchError:
        """Return the error for an anchor that does not stand exactly once."""
        where = f"{self.path} ({scope})" if scope else str(self.path)
        return PatchError(f"{kind}: no single anchor in {where}: looked for {looked_for}; {found}", hint=_OTHER_TREE)

    def first_line(self, node: cst.CSTNode) -> int:
        """Return the 1-based line that a statement begins on, comments before it left aside."""
        return self._source.fragment_of(node).line_of(node)

    def _end(self, node: cst.CSTNode) -> int:
        return self._source.fragment_of(node).last_line_of(node)

    def _statements(self, unit: Unit) -> Sequence[cst.CSTNode]:
        """Return the statements of one unit, out of the classes around it."""
        try:
            fragment = self._source.fragment(unit)
        except SourceError as error:
            raise self._not_python(error) from None
        body: Sequence[cst.CSTNode] = fragment.module.body
        for _ in unit.classes:
            (owner,) = body
            assert isinstance(owner, cst.ClassDef)
            body = owner.body.body
        return body

    def _functions(self, classes: tuple[str, ...], name: str) -> tuple[cst.FunctionDef, ...]:
        units = [unit for unit in self._source.outline.units if (unit.classes, unit.name) == (classes, name)]
        found = (node for unit in units if not unit.is_class_header for node in self._statements(unit))
        return tuple(node for node in found if isinstance(node, cst.FunctionDef))

    def leading_statements(self) -> Iterator[cst.CSTNode]:
        """Yield the statements of the module's own level, in order; it ends with the first class."""
        for unit in self._source.outline.units:
            if unit.is_class_header:
                return
            yield from self._statements(unit)

    def function(self, kind: str, qualname: str) -> cst.FunctionDef:
        """Return the function called `qualname`, `Class.method` or a module-level name.

        Raises:
            PatchError: there is none, or more than one.
        """
        *classes, name = qualname.split(".")
        functions = self._functions(tuple(classes), name)
        if len(functions) != 1:
            raise self.refuse(kind, qualname, "the function itself", _count(self._at(functions)))
        return functions[0]

    def methods(self, class_name: str, name: str) -> tuple[cst.FunctionDef, ...]:
        """Return the functions of that name that the module's classes of that name define, in order."""
        return self._functions((class_name,), name)

    def method_names(self, class_name: str, holding: str) -> tuple[str, ...]:
        """Return the names of the methods of a class whose source holds a text, in order."""
        units = [unit for unit in self._source.outline.units if unit.classes == (class_name,)]
        named = (unit.name for unit in units if holding in self._source.text_of(unit))
        return tuple(dict.fromkeys(name for name in named if name is not None))

    def refuse_early_leave(
        self, kind: str, scope: str, looked_for: str, statement: Statement, body: Sequence[Statement]
    ) -> None:
        """Refuse a place that a `return` before it can leave out.

        Raises:
            PatchError: a statement of `body` before `statement` may return.
        """
        for before in body:
            if before is statement:
                return
            if leaves := _returns(before):
                found = f"found a return before it, at line {self.first_line(leaves[0])}"
                raise self.refuse(kind, scope, f"{looked_for} on every way through", found)

    def refuse_rebinding(
        self, kind: str, scope: str, name: str, within: Sequence[Statement], but: Statement | None = None
    ) -> None:
        """Refuse a place whose call would be given something else than `name` stood for.

        Raises:
            PatchError: a statement of `within`, other than `but`, binds the name anew.
        """
        for statement in within:
            if statement is not but and (found := _bindings(statement, name)):
                what = f"found it bound anew, at line {self.first_line(found[0])}"
                raise self.refuse(kind, scope, f"{name} to stay what it is", what)

    def body(self, function: cst.FunctionDef) -> tuple[Statement, ...]:
        """Return the statements of a function's own level; none for a body on the `def` line."""
        if not isinstance(function.body, cst.IndentedBlock):
            return ()
        return tuple(node for node in function.body.body if isinstance(node, Statement))

    def single(
        self, kind: str, scope: str, looked_for: str, found: Sequence[Statement], among: Sequence[Statement]
    ) -> Statement:
        """Return the one statement in `found`, which was looked for `among` the statements of `scope`.

        Raises:
            PatchError: there is none, or more than one.
        """
        if len(found) == 1:
            return found[0]
        what = _count(self._at(found))
        if not found and among:
            what += f" among its {len(among)} statements in lines {self.first_line(among[0])}-{self._end(among[-1])}"
        raise self.refuse(kind, scope, looked_for, what)

    def _at(self, nodes: Iterable[cst.CSTNode]) -> list[int]:
        return [self.first_line(node) for node in nodes]

    def insert_before(self, node: Statement, *, kind: str, scope: str, anchor: str, text: str) -> Insertion:
        """Propose `text` before a statement and the comments that belong to it, indented as the statement is.

        Raises:
            PatchError: the file's line ends are not git's.
        """
        line = self.first_line(node)
        return self._insertion(self._above_comments(line), line, kind=kind, scope=scope, anchor=anchor, text=text)

    def _above_comments(self, line: int) -> int:
        """Return the line of the first comment that stands right above a statement, indented as it is."""
        code = self._lines[line - 1]
        indentation = code[: len(code) - len(code.lstrip(b" \t"))]
        while line > 1 and self._lines[line - 2].startswith(indentation + b"#"):
            above = self._lines[line - 2]
            # A string may end on such a line.
            if b'"""' in above or b"'''" in above or self._lines[line - 3].rstrip().endswith(b"\\"):
                break
            line -= 1
        return line

    def is_behind_mark(self, node: cst.CSTNode) -> bool:
        """Tell whether a statement stands on the line of a byte order mark, which stays the file's first bytes."""
        return self.data.startswith(codecs.BOM_UTF8) and self.first_line(node) == 1

    def insert_after(self, node: Statement, *, kind: str, scope: str, anchor: str, text: str) -> Insertion:
        """Propose `text` after a simple statement, indented as the statement is.

        Raises:
            PatchError: the statement shares its line with another, or ends the file without a newline.
        """
        if not m.matches(node, m.SimpleStatementLine(body=[m.DoNotCare()])):
            raise self.refuse(kind, scope, anchor, "found it sharing its line with another statement")
        end = self._end(node)
        return self._insertion(end + 1, self.first_line(node), kind=kind, scope=scope, anchor=anchor, text=text)

    def _insertion(self, line: int, anchor_line: int, *, kind: str, scope: str, anchor: str, text: str) -> Insertion:
        if b"\r" in self.data.replace(b"\r\n", b"") or line > len(self._lines):
            raise self.refuse(kind, scope, anchor, "found line ends that git counts in another way")
        beside = self._lines[anchor_line - 1]
        code = beside.removeprefix(codecs.BOM_UTF8)
        indentation = code[: len(code) - len(code.lstrip(b" \t"))].decode()
        newline = "\r\n" if beside.endswith(b"\r") else "\n"
        return Insertion(kind, self.path, scope, anchor, line, indented(text, indentation), newline)


class _Returns(cst.CSTVisitor):
    """Gathers the returns of a function itself, those of functions within it left aside."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[cst.CSTNode] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:  # noqa: N802 - the name is libcst's
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:  # noqa: N802
        return False

    def visit_Return(self, node: cst.Return) -> None:  # noqa: N802
        self.found.append(node)


def _returns(statement: Statement) -> list[cst.CSTNode]:
    visitor = _Returns()
    statement.visit(visitor)
    return visitor.found


def _bindings(statement: Statement, name: str) -> list[cst.CSTNode]:
    """Return where a statement, or anything within it, gives a plain name to something."""
    plain = m.Name(name)
    binding = (
        m.AssignTarget(target=plain | m.Tuple([m.ZeroOrMore(), m.Element(plain), m.ZeroOrMore()]))
        | m.AnnAssign(target=plain)
        | m.AugAssign(target=plain)
        | m.NamedExpr(target=plain)
        | m.For(target=plain)
        | m.AsName(name=plain)
        | m.Del(target=plain)
    )
    return list(m.findall(statement, binding))


def _count(lines: Sequence[int]) -> str:
    if not lines:
        return "found none"
    return f"found {len(lines)}, at lines {', '.join(map(str, lines))}"


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function: its name and its annotation's code, empty without one."""

    name: str
    annotation: str


def parameters(function: cst.FunctionDef) -> tuple[Parameter, ...]:
    """Return the named parameters of a function in order, `self` and `cls` included."""
    listed = (*function.params.posonly_params, *function.params.params, *function.params.kwonly_params)
    return tuple(
        Parameter(
            item.name.value,
            "" if item.annotation is None else cst.Module([]).code_for_node(item.annotation.annotation).strip("'\" "),
        )
        for item in listed
    )


@lru_cache(maxsize=8)
def annotated_fields(data: bytes, class_name: str | None = None) -> frozenset[str]:
    """Return the names of the annotated fields of a module's class, or of all its classes without a name.

    A question, not an edit: the standard library's parser answers it several times faster on large modules.
    """
    try:
        module = ast.parse(data)
    except (SyntaxError, ValueError):
        return frozenset()
    owners = [node for node in module.body if isinstance(node, ast.ClassDef) and class_name in (None, node.name)]
    return frozenset(
        field.target.id
        for owner in owners
        for field in owner.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    )


class ParsedTree:
    """The files of a source tree, each parsed when it is first asked for, and what the tracer reads of its models."""

    def __init__(self, tree: SourceTree, readings: Readings | None = None) -> None:
        self.tree = tree
        self._reader = readings or Readings()
        self._parsed: dict[PurePosixPath, ParsedFile] = {}

    @property
    def files(self) -> Mapping[PurePosixPath, bytes]:
        """The bytes of every file."""
        return self.tree.files

    @property
    def readings(self) -> ModelReadings:
        """What the model files hold."""
        return self._reader.of(self.tree)

    def parsed(self, kind: str, path: PurePosixPath) -> ParsedFile:
        """Return a file that a rewriter may insert into.

        Raises:
            PatchError: the tree has no such file, or it holds an insertion of the tool already.
        """
        if path not in self._parsed:
            data = self.tree.files.get(path)
            if data is None:
                raise PatchError(f"{kind}: no {path} in {self.tree.origin}", hint=_OTHER_TREE)
            refuse_patched(path, data)
            self._parsed[path] = _parse_once(path, data)
        return self._parsed[path]


@lru_cache(maxsize=12)
def _parse_once(path: PurePosixPath, data: bytes) -> ParsedFile:
    """Return a file parsed; nothing changes it, so that writing a patch again need not parse its files again."""
    return ParsedFile(path, data)


def refuse_patched(path: PurePosixPath, data: bytes) -> None:
    """Refuse a file that the tool has patched.

    Raises:
        PatchError: it names the gate.
    """
    if GATE_NAME.encode() in data or TAP_PACKAGE.encode() in data:
        raise PatchError(
            f"{path} is patched already: it names {GATE_NAME}",
            hint="give the tree without the patch, for a checkout PATH@REF with the release's tag",
        )
