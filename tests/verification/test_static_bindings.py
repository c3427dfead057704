"""Which names count as bound."""

import ast
import textwrap

import pytest

from auxtap.verification.static.bindings import statement_at, unbound_names

CASES = {
    "a parameter": ("def f(x):\n    use(x)", ["use"]),
    "keyword, star and double star": ("def f(a, /, *b, c, **d):\n    (a, b, c, d)", []),
    "assigned before": ("def f():\n    x = 1\n    print_(x)", ["print_"]),
    "assigned after": ("def f():\n    (x)\n    x = 1", ["x"]),
    "annotated without a value": ("def f():\n    x: int\n    (x)", ["x"]),
    "annotated with a value": ("def f():\n    x: int = 1\n    (x)", []),
    "on one way": ("def f(a):\n    if a:\n        x = 1\n    (x)", ["x"]),
    "on both ways": ("def f(a):\n    if a:\n        x = 1\n    else:\n        x = 2\n    (x)", []),
    "the other way leaves": ("def f(a):\n    if a:\n        x = 1\n    else:\n        return\n    (x)", []),
    "the same branch": ("def f(a):\n    if a:\n        x = 1\n        (x)", []),
    "the other branch": ("def f(a):\n    if a:\n        x = 1\n    else:\n        (x)", ["x"]),
    "within a loop": ("def f(a):\n    for x in a:\n        (x)", []),
    "after a loop": ("def f(a):\n    for x in a:\n        y = x\n    (x, y)", ["x", "y"]),
    "in a try": ("def f(a):\n    try:\n        x = 1\n    except E:\n        pass\n    (x)", ["x"]),
    "with": ("def f(a):\n    with a as x:\n        y = 1\n    (x, y)", []),
    "deleted": ("def f(x):\n    del x\n    (x)", ["x"]),
    "deleted on one way": ("def f(x):\n    if x:\n        del x\n    (x)", ["x"]),
    "at module level": ("y = 1\ndef f():\n    (y)", []),
    "imported at module level": ("import a.b as y, c.d\ndef f():\n    (y, c)", []),
    "perhaps at module level": ("try:\n    import y\nexcept E:\n    pass\ndef f():\n    (y)", ["y"]),
    "shadowed by a later assignment": ("y = 1\ndef f():\n    (y)\n    y = 2", ["y"]),
    "a method": ("class A:\n    z = 1\n    def f(self):\n        (self, z)", ["z"]),
}


@pytest.mark.parametrize("name", CASES)
def test_unbound_names(name: str) -> None:
    code, expected = CASES[name]
    module = ast.parse(textwrap.dedent(code))
    reads = [node for node in ast.walk(module) if isinstance(node, ast.Expr)]
    assert list(unbound_names(module, reads[-1])) == expected


def test_statement_at_is_the_outermost_that_begins_there() -> None:
    module = ast.parse("if a: b()\nc = 1; d = 2\n")
    assert isinstance(statement_at(module, 1), ast.If)
    assert statement_at(module, 3) is None
