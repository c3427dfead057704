"""Arm: choose the layers on the loaded model, once, when the runner is set up."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from libcst import matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.rewriters.insertion import Insertion, guarded_call
from auxtap.rewriters.syntax import ParsedTree, parameters

_FLAG = "eagle_use_aux_hidden_state"


@dataclass(frozen=True)
class ArmRewriter:
    """Insert the call before the place where a draft model's own layers are set."""

    path: PurePosixPath = SRT_ROOT / "model_executor/model_runner.py"
    kind: str = "arm"
    scope: str = "ModelRunner.initialize"

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the place before the test of the flag; the same test stands in other functions too.

        Raises:
            PatchError: the test is missing from the function, or stands in it twice.
        """
        parsed = files.parsed(self.kind, self.path)
        function = parsed.function(self.kind, self.scope)
        runner = next((parameter.name for parameter in parameters(function)), "")
        body = parsed.body(function)
        test = m.If(test=m.Attribute(value=m.Name(runner), attr=m.Name(_FLAG)))
        found = [statement for statement in body if m.matches(statement, test)]
        anchor = f"the test of {_FLAG}"
        statement = parsed.single(self.kind, self.scope, anchor, found, body)
        text = guarded_call("arm", runner)
        return parsed.insert_before(statement, kind=self.kind, scope=self.scope, anchor=f"before {anchor}", text=text)
