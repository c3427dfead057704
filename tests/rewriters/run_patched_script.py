"""Run patched functions of SGLang, each in a module all of whose imports are stand-ins; started apart from the tests.

Reads a list of jobs as JSON from stdin: the patched source, the qualified name of the function, and how often to run
it. What a condition comes to is drawn anew in each run. Prints for each job what was seen of the inserted call.
"""

import builtins
import json
import random
import signal
import sys
import types
import typing

LIMIT_S = 20
REAL = {"__future__", "abc", "collections", "contextlib", "copy", "dataclasses", "enum", "functools", "typing"}
N_ROUNDS = 3


class Anything:
    """Stands for any object, class or module: whatever is asked of it gives another one.

    Read twice, an attribute is the same object; as a condition it is drawn; it unpacks into two.
    """

    def __init__(self, name: str = "?") -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> typing.Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = self.__dict__[name] = Anything(f"{self._name}.{name}")
        return made

    def __call__(self, *given: typing.Any, **named: typing.Any) -> typing.Any:
        # A decorator gives the function back, so that it can still be called.
        only = given[0] if len(given) == 1 and not named and isinstance(given[0], types.FunctionType) else None
        return Anything(f"{self._name}()") if only is None else only

    def __mro_entries__(self, bases: tuple[typing.Any, ...]) -> tuple[type, ...]:
        return ()

    def __bool__(self) -> bool:
        return random.random() < 0.5

    def __iter__(self) -> typing.Iterator[typing.Any]:
        return iter([Anything(f"{self._name}[0]"), Anything(f"{self._name}[1]")])

    def __getitem__(self, key: typing.Any) -> typing.Any:
        return Anything(f"{self._name}[]")

    def __setitem__(self, key: typing.Any, value: typing.Any) -> None:
        return None

    def __contains__(self, item: typing.Any) -> bool:
        return bool(self)

    def __len__(self) -> int:
        return 2

    def __index__(self) -> int:
        return 2

    __int__ = __index__

    def __float__(self) -> float:
        return 2.0

    def __hash__(self) -> int:
        return id(self)

    def __enter__(self) -> typing.Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __instancecheck__(self, other: typing.Any) -> bool:
        return bool(self)

    __subclasscheck__ = __instancecheck__


def _operator(self: Anything, *_: typing.Any) -> Anything:
    return Anything("value")


def _comparison(self: Anything, other: typing.Any) -> bool:
    return self is other or random.random() < 0.5


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul")
for _name in _BINARY:
    setattr(Anything, f"__{_name}__", _operator)
    setattr(Anything, f"__r{_name}__", _operator)
for _name in ("neg", "pos", "invert", "abs"):
    setattr(Anything, f"__{_name}__", _operator)
for _name in ("eq", "lt", "le", "gt", "ge"):
    setattr(Anything, f"__{_name}__", _comparison)


def stand_in(name: str, *rest: typing.Any) -> typing.Any:
    """Import what is harmless; anything else is a module of stand-ins."""
    if name.partition(".")[0] in REAL:
        return real_import(name, *rest)
    return Anything(name)


class Recorder:
    """What the gate gives while the tap is on: it remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[typing.Any, ...]]] = []

    def __getattr__(self, name: str) -> typing.Callable[..., None]:
        return lambda *given: self.calls.append((name, given))


def load(source: str) -> dict[str, typing.Any]:
    names: dict[str, typing.Any] = {
        "__name__": "patched",
        "__builtins__": {**vars(builtins), "__import__": stand_in},
    }
    module = types.ModuleType("patched")
    module.__dict__.update(names)
    # Dataclasses look their module up by name.
    sys.modules["patched"] = module
    exec(compile(source, "<patched>", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def arguments(function: types.FunctionType, names: dict[str, typing.Any], owner: str) -> dict[str, typing.Any]:
    """Return a stand-in for each parameter; self has layers to run and to capture, cls is the class itself."""
    code = function.__code__
    wanted = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = {name: Anything(name) for name in wanted}
    first = wanted[0]
    if first == "cls":
        given[first] = names[owner]
    else:
        given[first].__dict__.update(start_layer=0, end_layer=N_ROUNDS, layers_to_capture=[1, 2])
    return given


def run_once(names: dict[str, typing.Any], qualname: str) -> tuple[list[list[str]], str | None]:
    """Return the calls that were made, and why the run did not end, if so."""
    owner, _, method = qualname.rpartition(".")
    found = vars(names[owner])[method]
    function = getattr(found, "__func__", found)
    recorder = names["_auxtap"] = Recorder()
    given = arguments(function, names, owner)
    failure, returned = None, Recorder()
    try:
        returned = function(**given)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    known = {id(value): name for name, value in given.items()}

    def say(value: typing.Any) -> str:
        if value is returned:
            return "the result"
        if id(value) in known:
            return known[id(value)]
        if isinstance(value, list):
            return f"list of {len(value)}"
        return value._name if isinstance(value, Anything) else type(value).__name__

    return [[name, *map(say, values)] for name, values in recorder.calls], failure


def run_job(job: dict[str, typing.Any]) -> dict[str, typing.Any]:
    ended: list[list[list[str]]] = []
    broken_off: list[list[list[str]]] = []
    failures: list[str] = []
    random.seed(0)
    names = load(job["source"])
    for number in range(job["runs"]):
        random.seed(number)
        signal.alarm(LIMIT_S)
        calls, failure = run_once(names, job["qualname"])
        signal.alarm(0)
        if failure is None:
            ended.append(calls)
        else:
            broken_off.append(calls)
            failures.append(failure)
    return {"ended": ended, "broken_off": broken_off, "failures": failures}


real_import = builtins.__import__
if __name__ == "__main__":
    json.dump([run_job(job) for job in json.load(sys.stdin)], sys.stdout)
