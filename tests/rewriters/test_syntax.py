"""Functions and statements are found and counted as in the whole file, however it is laid out."""

from pathlib import PurePosixPath

import libcst as cst
import pytest

from auxtap.core.errors import PatchError
from auxtap.rewriters.places.syntax import ParsedFile

PATH = PurePosixPath("python/sglang/srt/a.py")
IMPORTS = "import a\nimport b\n"
# A source, the function that is looked for, and the line that its `def` (or its first decorator) stands on.
LAID_OUT = {
    "plain": ("def f():\n    x = 1\n", "f", 2),
    "after a comment": ("# why\n\ndef f():\n    x = 1\n", "f", 4),
    "decorated": ("@deco\ndef f():\n    x = 1\n", "f", 3),
    "decorated over lines": ("@(\n    deco\n)\ndef f():\n    x = 1\n", "f", 5),
    "decorated first in a class": ("class A:\n    @(\n     deco\n    )\n    def f(self):\n        x = 1\n", "A.f", 6),
    "nested by tabs": ("class A:\n\tclass B:\n\t\tdef f(self):\n\t\t\tx = 1\n", "A.B.f", 4),
    "nested by two": ("class A:\n  class B:\n    def f(self):\n      x = 1\n", "A.B.f", 4),
    "behind a long header": ("class A(\n    B,\n):\n    y = 2\n\n    def f(self):\n        x = 1\n", "A.f", 7),
    "behind a class on one line": ("class E(\n    Exception,\n): pass\n\ndef f():\n    x = 1\n", "f", 6),
    "behind text at the margin": ("class A:\n    y = '''\ndef f(): 1\n'''\n    def f(self):\n      x = 1\n", "A.f", 6),
    "async": ("async def f():\n    x = 1\n", "f", 2),
}  # fmt: skip


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("case", LAID_OUT)
def test_a_function_is_found_wherever_it_stands(case: str, mark: str, newline: str) -> None:
    source, name, line = LAID_OUT[case]
    parsed = ParsedFile(PATH, f"{mark}import a\n{source}".replace("\n", newline).encode())
    function = parsed.function("test", name)
    assert parsed.first_line(function) == line
    (statement,) = parsed.body(function)
    assert parsed.first_line(statement) == line + 1


@pytest.mark.parametrize(
    ("behind", "n_found"),
    [
        ("", 2),
        ("class A:\n    pass\nimport c\n", 2),
        ("class E(\n    Exception,\n): pass\n", 3),
        ("@(\n    deco\n)\ndef f(): ...\n", 3),
        ("import c; import d\n", 3),
        ("if a:\n    import c\n", 3),
    ],
)
def test_leading_statements_come_in_order_and_end_with_a_class(behind: str, n_found: int) -> None:
    parsed = ParsedFile(PATH, (IMPORTS + behind).encode())
    found = list(parsed.leading_statements())
    assert len(found) == n_found and all(isinstance(node, cst.SimpleStatementLine) for node in found[:2])
    assert [parsed.first_line(node) for node in found[:2]] == [1, 2]


def test_what_is_no_python_is_said_in_one_line() -> None:
    with pytest.raises(PatchError) as caught:
        ParsedFile(PATH, b"def f(:\n")
    assert caught.value.message.startswith(f"cannot parse {PATH}: ") and "\n" not in caught.value.message


def test_what_libcst_cannot_parse_is_said_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = cst.parse_module

    def narrower(text: str) -> cst.Module:
        return real(text.replace("strange", "not ( strange"))

    monkeypatch.setattr(cst, "parse_module", narrower)
    parsed = ParsedFile(PATH, b"import a\n\n\nclass A:\n    def f(self):\n        x = 1\n        strange\n")
    with pytest.raises(PatchError) as caught:
        parsed.function("test", "A.f")
    assert caught.value.message.startswith(f"cannot parse {PATH}:7: ") and "\n" not in caught.value.message
