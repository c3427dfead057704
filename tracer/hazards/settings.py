"""What the server's options are in one release: read from the definitions, wherever the release keeps them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from auxtap.core.errors import SourceError
from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tracer.report.trace_report import Evidence
from auxtap.tracer.source.outline import decode_source

SERVER_ARGS = SRT_ROOT / "server_args.py"
_FIELDS = SRT_ROOT / "arg_groups/fields"


@dataclass(frozen=True)
class Setting:
    """One field of the server's settings: where it is defined, the source of its default, whether it is an option."""

    name: str
    default: str | None
    is_option: bool
    evidence: Evidence

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True, eq=False)
class Settings:
    """The settings of one tree, read when first asked for."""

    tree: SourceTree

    def find(self, name: str) -> Setting | None:
        """Return the setting of that name."""
        return self._known.get(name)

    def option(self, *names: str) -> Setting | None:
        """Return the first of `names` that is an option of this release."""
        found = (self._known.get(name) for name in names)
        return next((item for item in found if item is not None and item.is_option), None)

    @cached_property
    def _known(self) -> dict[str, Setting]:
        known: dict[str, Setting] = {}
        flags: set[str] = set()
        for path, data in sorted(self.tree.files.items()):
            if path == SERVER_ARGS or path.is_relative_to(_FIELDS):
                text, module = _parse(path, data)
                flags.update(_added_flags(module))
                for setting in _fields_of(path, text, module):
                    known.setdefault(setting.name, setting)
        for name, setting in known.items():
            if setting.flag in flags:
                known[name] = Setting(name, setting.default, True, setting.evidence)
        return known


def _parse(path: PurePosixPath, data: bytes) -> tuple[list[str], ast.Module]:
    text = decode_source(path, data)
    try:
        return text.split("\n"), ast.parse(text)
    except SyntaxError as error:
        raise SourceError(f"cannot parse {path}: {error}", hint="is it a Python source file?") from error


def _added_flags(module: ast.Module) -> Iterator[str]:
    """Yield the options that `add_argument` calls define."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def _fields_of(path: PurePosixPath, lines: list[str], module: ast.Module) -> Iterator[Setting]:
    for owner in module.body:
        if not isinstance(owner, ast.ClassDef):
            continue
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                default = None if node.value is None else ast.unparse(node.value)
                evidence = Evidence(path, node.lineno, owner.name, lines[node.lineno - 1].strip())
                yield Setting(node.target.id, default, _makes_option(node.annotation), evidence)


def _makes_option(annotation: ast.expr) -> bool:
    """Tell whether a field's annotation `A[type, help]` makes an option, which `Arg(no_cli=True)` takes back."""
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.value, ast.Name):
        return False
    hidden = any(
        isinstance(node, ast.keyword) and node.arg == "no_cli" and isinstance(node.value, ast.Constant)
        for node in ast.walk(annotation)
    )
    return annotation.value.id in {"A", "Annotated"} and not hidden
