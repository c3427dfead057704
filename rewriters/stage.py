"""Stage: take the states of a pipeline stage before its exit drops them."""

from dataclasses import dataclass
from pathlib import PurePosixPath

import libcst as cst
from libcst import matchers as m

from auxtap.rewriters.insertion import Insertion, guarded_call
from auxtap.rewriters.syntax import ParsedFile, ParsedTree, parameters
from auxtap.tracer.report import FileTrace, StageBranch
from auxtap.tracer.tracing import trace_file

_BATCH_CLASS = "ForwardBatch"


@dataclass(frozen=True)
class StageRewriter:
    """Insert the call before the stage exit of the function that fills the accumulator."""

    path: PurePosixPath
    kind: str = "stage"

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the place before the only stage exit behind a capture loop, with that function's own names.

        Raises:
            PatchError: there is no such exit, or more than one, or the function has not exactly one accumulator
                and one forward batch.
        """
        parsed = files.parsed(self.kind, self.path)
        trace = trace_file(self.path, parsed.data)
        branch = self._stage_exit(parsed, trace)
        function = parsed.function(self.kind, branch.scope)
        body = parsed.body(function)
        found = [
            statement
            for statement in body
            if m.matches(statement, m.If()) and parsed.first_line(statement) == branch.line
        ]
        anchor = "the stage exit behind the capture loop"
        statement = parsed.single(self.kind, branch.scope, f"{anchor} at the function's own level", found, body)
        owner = next((parameter.name for parameter in parameters(function)), "")
        accumulator = self._accumulator(parsed, trace, branch)
        batch = self._forward_batch(parsed, function, branch)
        text = guarded_call("stage", owner, accumulator, batch)
        return parsed.insert_before(statement, kind=self.kind, scope=branch.scope, anchor=f"before {anchor}", text=text)

    def _stage_exit(self, parsed: ParsedFile, trace: FileTrace) -> StageBranch:
        filling = {site.scope for site in trace.capture_sites if site.role == "append"}
        exits = [branch for branch in trace.stage_branches if branch.role == "stage_exit"]
        found = [branch for branch in exits if branch.scope in filling]
        if len(found) == 1:
            return found[0]
        lines = ", ".join(f"{branch.line} ({branch.scope})" for branch in found or exits) or "none"
        scopes = ", ".join(sorted(filling)) or "no function"
        raise parsed.refuse(
            self.kind,
            scopes if len(filling) == 1 else "",
            "one stage exit (a return of PPProxyTensors) in the function that captures",
            f"found {scopes} capturing and stage exits at {lines}",
        )

    def _accumulator(self, parsed: ParsedFile, trace: FileTrace, branch: StageBranch) -> str:
        names = [
            site.name
            for site in trace.capture_sites
            if site.role == "accumulator_init" and site.scope == branch.scope and site.line < branch.line
        ]
        if len(names) != 1:
            found = f"found {len(names)}: {', '.join(names) or 'none'}"
            raise parsed.refuse(self.kind, branch.scope, "one accumulator of captured states", found)
        return names[0]

    def _forward_batch(self, parsed: ParsedFile, function: cst.FunctionDef, branch: StageBranch) -> str:
        names = [parameter.name for parameter in parameters(function) if parameter.annotation == _BATCH_CLASS]
        if len(names) != 1:
            found = f"found {len(names)}: {', '.join(names) or 'none'}"
            raise parsed.refuse(self.kind, branch.scope, f"one parameter of class {_BATCH_CLASS}", found)
        return names[0]
