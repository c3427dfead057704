"""What of a patch runs, in one digest: proofs are kept under it, so that a mended comment voids none of them."""

import ast
import textwrap
from collections.abc import Collection, Iterator
from itertools import groupby
from typing import Any

from auxtap.core.files import sha256_bytes
from auxtap.core.patch_text import InsertedLine, PatchedFile, read_patch
from auxtap.rewriters.patch.plan import TAP_ROOT
from auxtap.rewriters.patch.table import BACKBONES_NAME, REFUSED_NAME

_BACKBONES = TAP_ROOT / BACKBONES_NAME


def code_digest(patch: bytes, model_modules: Collection[str]) -> str:
    """Return the digest of what `patch` makes a server run: inserted statements with their places, and the tap's code.

    Comments, docstrings and layout do not count. Of the table of backbones only the entries that capture count, and of
    them those of `model_modules` (names of files below models/, such as `llama`): what is said of other classes, or why
    one is refused, changes nothing for the models whose values were compared.

    Raises:
        PatchTextError: it is no patch of the tool.
        SyntaxError: what it inserts or adds is no Python.
    """
    shapes = [_file_shape(file, model_modules) for file in sorted(read_patch(patch), key=lambda file: str(file.path))]
    return sha256_bytes("\n".join(shapes).encode())


def _file_shape(file: PatchedFile, model_modules: Collection[str]) -> str:
    if not file.is_new:
        blocks = "".join(f" {first}:{_shape(ast.parse(text))}" for first, text in _blocks(file.inserted))
        return f"{file.path}{blocks}"
    module = ast.parse(b"".join(line.data for line in file.inserted))
    shape = _table_shape(module, model_modules) if file.path == _BACKBONES else _shape(module)
    return f"{file.path} {shape}"


def _blocks(inserted: tuple[InsertedLine, ...]) -> Iterator[tuple[int, str]]:
    """Yield the lines that stand together as one text without its indentation, and where the first one stands."""
    for _, group in groupby(enumerate(inserted), key=lambda pair: pair[1].line - pair[0]):
        lines = [line for _, line in group]
        yield lines[0].line, textwrap.dedent(b"".join(line.data for line in lines).decode())


def _table_shape(module: ast.Module, model_modules: Collection[str]) -> str:
    """Return the tables that capture, with the entries of some modules; a key is `<module>.<class>`."""
    found = []
    for statement in module.body:
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Dict() as value):
                table = {} if name == REFUSED_NAME else ast.literal_eval(value)
                kept = {key: table[key] for key in sorted(table) if key.rpartition(".")[0] in model_modules}
                found.append(f"{name}={kept!r}")
            case _ if not _is_text(statement):
                found.append(_shape(statement))
    return " ".join(found)


def _shape(node: Any) -> str:
    """Return a syntax tree as text that is the same under every Python: `ast.dump` is not."""
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value is not None and value != [])
        return f"{type(node).__name__}({','.join(f'{name}={_shape(value)}' for name, value in fields)})"
    if isinstance(node, list):
        return f"[{','.join(_shape(item) for item in node if not _is_text(item))}]"
    return repr(node)


def _is_text(node: Any) -> bool:
    """Tell whether a statement is a string and nothing else, such as a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
