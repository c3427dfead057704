"""What the plugin does to a module in memory, on small modules of our own."""

import sys
import traceback
import types
from pathlib import Path, PurePosixPath

import pytest

from auxtap.core.patch_text import InsertedLine, PatchedFile, with_inserted
from auxtap.serving.plugin.patches import PatchedSource, PluginRefusedError
from auxtap.serving.plugin.swapping import plan_change, put_in

BEFORE = '''\
"""A module."""
import functools


def around(function):
    @functools.wraps(function)
    def wrapper(*args):
        return ["around", *function(*args)]

    return wrapper


class Base:
    def run(self, items):
        return ["base"]


class Model(Base):
    @around
    def run(self, items):
        items = [*super().run(items), *items]
        return items

    @classmethod
    def make(cls, items):
        return cls().run(items)

    def fail(self):
        raise RuntimeError("x")


def plain(items):
    return [item for item in items]
'''
GATE = "SEEN = []\n"
INSIDE = "        SEEN.append(tuple(items))\n"


def source(*inserted: tuple[int, str], before: str = BEFORE) -> PatchedSource:
    """`inserted` are lines with their numbers in the patched file."""
    lines = tuple(InsertedLine(line, text.encode()) for line, text in inserted)
    change = PatchedFile(PurePosixPath("python/sglang/srt/module.py"), False, lines)
    return PatchedSource(before.encode(), with_inserted(before.encode(), change), change)


def loaded(tmp_path: Path, text: str = BEFORE) -> types.ModuleType:
    path = tmp_path / "module.py"
    path.write_text(text)
    module = types.ModuleType("module")
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def test_a_decorated_method_runs_the_inserted_line_and_stays_the_same_object(tmp_path):
    module = loaded(tmp_path)
    wrapper, function = module.Model.run, module.Model.run.__wrapped__
    put_in(module, source((3, GATE), (23, INSIDE)))
    assert module.Model.make(["a"]) == ["around", "base", "a"]
    assert module.SEEN == [("base", "a")]
    assert module.Model.run is wrapper and wrapper.__wrapped__ is function


def test_lines_stay_those_of_the_file(tmp_path):
    module = loaded(tmp_path)
    before = module.Model.fail.__code__
    put_in(module, source((3, GATE), (30, "        SEEN.append(1)\n")))
    assert module.Model.fail.__code__ is not before
    with pytest.raises(RuntimeError) as raised:
        module.Model().fail()
    (*_, last) = traceback.extract_tb(raised.value.__traceback__)
    assert (last.line, module.SEEN) == ('raise RuntimeError("x")', [1])


def test_code_that_the_patch_leaves_alone_is_left_alone(tmp_path):
    module = loaded(tmp_path)
    before = {"plain": module.plain.__code__, "make": module.Model.make.__func__.__code__}
    put_in(module, source((3, GATE), (23, INSIDE)))
    assert before == {"plain": module.plain.__code__, "make": module.Model.make.__func__.__code__}


@pytest.mark.parametrize("name", ["run", "fail"])
def test_a_function_that_is_not_its_file_s_is_refused_and_nothing_changes(tmp_path, name):
    module = loaded(tmp_path)
    kept = module.Model.run.__wrapped__.__code__, module.Model.fail.__code__
    setattr(module.Model, name, lambda self: None)
    with pytest.raises(PluginRefusedError, match=rf"Model.{name} is not the function of its file"):
        put_in(module, source((3, GATE), (23, INSIDE), (31, "        SEEN.append(1)\n")))
    assert not hasattr(module, "SEEN")
    if name == "fail":
        assert module.Model.run.__wrapped__.__code__ is kept[0]
    else:
        assert module.Model.fail.__code__ is kept[1]


def test_a_file_that_says_something_else_than_memory_is_refused(tmp_path):
    module = loaded(tmp_path, BEFORE.replace('["base"', '["other"').replace("*items]", "items]"))
    with pytest.raises(PluginRefusedError, match="another plugin or patch"):
        put_in(module, source((22, INSIDE)))


@pytest.mark.parametrize(
    "text",
    ["class Model:\n    x = 1\n", "class Model:\n    class Inner:\n        def run(self):\n            return 1\n"],
)
def test_places_that_memory_does_not_have_are_refused(text):
    last = len(text.splitlines())
    indent = " " * (len(text.splitlines()[-1]) - len(text.splitlines()[-1].lstrip()))
    with pytest.raises(PluginRefusedError, match="in no function that can be changed"):
        plan_change(source((last, f"{indent}y = 2\n"), before=text), "module.py")


def test_a_nested_function_is_refused():
    text = "def outer():\n    def inner():\n        return 1\n    return inner\n"
    with pytest.raises(PluginRefusedError, match="in no function that can be changed"):
        plan_change(source((3, "        y = 2\n"), before=text), "module.py")


def test_this_python_knows_that_equal_code_is_equal(tmp_path):
    """The comparison with the file rests on it."""
    one, other = (compile(BEFORE, "a.py", "exec"), compile(BEFORE, "b.py", "exec"))
    assert one == other and one != compile(BEFORE.replace("base", "other"), "a.py", "exec")
    assert sys.version_info >= (3, 11)
