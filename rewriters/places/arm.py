"""Arm: choose the layers on the loaded model, once, when the runner is set up."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

import libcst as cst
from libcst import matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.rewriters.places.insertion import Insertion, guarded_call
from auxtap.rewriters.places.syntax import ParsedFile, ParsedTree, Statement, parameters

_RUNNER = "ModelRunner"
_FLAG = "eagle_use_aux_hidden_state"
_SETTER = "set_eagle3_layers_to_capture"
_CONFIGURE = "configure_aux_hidden_state_capture"
# Where a draft model's layers are set: up to 0.5.10, then in a method of its own up to 0.5.15.
_METHODS = ("initialize", "init_aux_hidden_state_capture")


@dataclass(frozen=True)
class ArmRewriter:
    """Insert the call before the place where a draft model's own layers are set."""

    path: PurePosixPath = SRT_ROOT / "model_executor/model_runner.py"
    kind: str = "arm"

    def is_needed(self, files: ParsedTree) -> bool:
        """Tell that every tree needs it."""
        return True

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the place before the one statement of the runner that sets the layers of a draft model.

        It is a test of the flag (0.5.7 to 0.5.15), a test of the draft algorithm around a call of the setter (up to
        0.5.6), or a call of the function that does both (0.5.16 on). The first two stand in other methods too,
        which prepare graphs; only `_METHODS` count for them.

        Raises:
            PatchError: no such statement stands at the own level of a method, or there are several, or nothing calls
                the method.
        """
        parsed = files.parsed(self.kind, self.path)
        for name in _METHODS:
            if place := self._in_method(files, parsed, name, (_tests_flag, _calls_setter)):
                return place
        names = parsed.method_names(_RUNNER, holding=_CONFIGURE)
        configuring = [self._in_method(files, parsed, name, (_calls_configure,)) for name in names]
        places = [place for place in configuring if place is not None]
        if len(places) > 1:
            found = ", ".join(f"{place.line} ({place.scope})" for place in places)
            raise parsed.refuse(self.kind, _RUNNER, f"one call of {_CONFIGURE}", f"found {len(places)}, at {found}")
        if places:
            return places[0]
        scope = f"{_RUNNER}.{_METHODS[0]}"
        body = parsed.body(parsed.function(self.kind, scope))
        parsed.single(self.kind, scope, f"the test of {_FLAG} or a call of {_CONFIGURE}", (), body)
        raise AssertionError("single raises where nothing was found")

    def _in_method(
        self, files: ParsedTree, parsed: ParsedFile, name: str, forms: "tuple[_Form, ...]"
    ) -> Insertion | None:
        functions = parsed.methods(_RUNNER, name)
        runner = next((item.name for function in functions for item in parameters(function)), "")
        found = [
            (statement, anchor)
            for function in functions
            for statement in parsed.body(function)
            for form in forms
            if (anchor := form(statement, runner))
        ]
        if not found:
            return None
        scope, anchor = f"{_RUNNER}.{name}", found[0][1]
        body = parsed.body(parsed.function(self.kind, scope))
        statement = parsed.single(self.kind, scope, anchor, [item for item, _ in found], body)
        parsed.refuse_early_leave(self.kind, scope, anchor, statement, body)
        self._require_called(files, parsed, name, scope)
        text = guarded_call("arm", runner)
        return parsed.insert_before(statement, kind=self.kind, scope=scope, anchor=f"before {anchor}", text=text)

    def _require_called(self, files: ParsedTree, parsed: ParsedFile, name: str, scope: str) -> None:
        call = f".{name}(".encode()
        if not any(call in data for data in files.files.values()):
            raise parsed.refuse(self.kind, scope, f"a call of {name}", "found none in the tree")


STATEMENT = ArmRewriter


_Form = Callable[[Statement, str], str]


def _tests_flag(statement: Statement, runner: str) -> str:
    test = m.If(test=m.Attribute(value=m.Name(runner), attr=m.Name(_FLAG)))
    return f"the test of {_FLAG}" if m.matches(statement, test) else ""


def _calls_setter(statement: Statement, runner: str) -> str:
    algorithm = m.Attribute(m.Name(runner), m.Name("spec_algorithm"))
    test = m.Call(func=m.Attribute(algorithm, m.Name("is_eagle3")), args=[])
    setter = m.Call(func=m.Attribute(m.Attribute(m.Name(runner), m.Name("model")), m.Name(_SETTER)))
    sets = isinstance(statement, cst.If) and m.findall(statement.test, test) and m.findall(statement.body, setter)
    return f"the test of the draft algorithm around {_SETTER}" if sets else ""


def _calls_configure(statement: Statement, runner: str) -> str:
    model = m.Arg(keyword=m.Name("model"), value=m.Attribute(m.Name(runner), m.Name("model")))
    call = m.Call(func=m.Name(_CONFIGURE), args=[m.ZeroOrMore(), model, m.ZeroOrMore()])
    line = m.SimpleStatementLine(body=[m.Expr(call)])
    return f"the call of {_CONFIGURE}" if m.matches(statement, line) else ""
