"""Stage: take the states of a pipeline stage before its exit drops them."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from libcst import matchers as m

from auxtap.rewriters.backbones.backbones import CaptureFunction, survey_capture
from auxtap.rewriters.backbones.capture_loops import CAPTURE_SUFFIX
from auxtap.rewriters.places.insertion import Insertion, guarded_call
from auxtap.rewriters.places.syntax import ParsedFile, ParsedTree

_STAGES = b"pp_group"


@dataclass(frozen=True)
class StageRewriter:
    """Insert the call before the stage exit of the function that fills the accumulator."""

    path: PurePosixPath
    kind: str = "stage"

    def propose(self, files: ParsedTree) -> Insertion:
        """Return the place before the only stage exit behind a capture loop, with that function's own names.

        Raises:
            PatchError: there is no such exit, or more than one, or a return may leave it out, or the function has
                not exactly one accumulator and one forward batch, or binds one of them anew.
        """
        parsed = files.parsed(self.kind, self.path)
        captures = self._capture_function(parsed)
        scope, exit_line = captures.scope, captures.exits[0].line
        function = parsed.function(self.kind, scope)
        body = parsed.body(function)
        found = [
            statement
            for statement in body
            if m.matches(statement, m.If()) and parsed.first_line(statement) == exit_line
        ]
        anchor = "the stage exit behind the capture loop"
        statement = parsed.single(self.kind, scope, f"{anchor} at the function's own level", found, body)
        self._require_one(parsed, scope, "accumulator of captured states", captures.accumulators)
        self._require_one(parsed, scope, "parameter of class ForwardBatch", captures.batches)
        parsed.refuse_early_leave(self.kind, scope, anchor, statement, body)
        before = body[: body.index(statement)]
        behind = [item for item in before if parsed.first_line(item) > captures.loop_line]
        parsed.refuse_rebinding(self.kind, scope, captures.batches[0], before)
        parsed.refuse_rebinding(self.kind, scope, captures.accumulators[0], behind)
        text = guarded_call("stage", captures.owner, captures.accumulators[0], captures.batches[0])
        return parsed.insert_before(statement, kind=self.kind, scope=scope, anchor=f"before {anchor}", text=text)

    def _capture_function(self, parsed: ParsedFile) -> CaptureFunction:
        survey = survey_capture(parsed.data)
        with_exits = [function for function in survey.functions if function.exits]
        if len(with_exits) == 1 and len(with_exits[0].exits) == 1 and not survey.unrecognised:
            return with_exits[0]
        exits = [f"{found.line} ({function.scope})" for function in survey.functions for found in function.exits]
        scopes = [function.scope for function in survey.functions]
        captures = ", ".join(scopes) or "no function"
        unknown = f", an unknown way of capturing in {', '.join(survey.unrecognised)}" if survey.unrecognised else ""
        raise parsed.refuse(
            self.kind,
            scopes[0] if len(scopes) == 1 else "",
            "one stage exit (a return unless it is the last rank) behind the loop of one function that captures",
            f"found {captures} capturing and stage exits at {', '.join(exits) or 'none'}{unknown}",
        )

    def _require_one(self, parsed: ParsedFile, scope: str, what: str, names: tuple[str, ...]) -> None:
        if len(names) != 1:
            found = f"found {len(names)}: {', '.join(names) or 'none'}"
            raise parsed.refuse(self.kind, scope, f"one {what}", found)


def captures_states(data: bytes) -> bool:
    """Tell whether a model file names captured layers."""
    return CAPTURE_SUFFIX.encode() in data


def has_stages(data: bytes) -> bool:
    """Tell whether a model file both captures states and knows pipeline stages; older ones do not do both."""
    return captures_states(data) and _STAGES in data


def captures_with_exit(data: bytes) -> bool:
    """Tell whether a model file has one recognised capture function with a stage exit."""
    survey = survey_capture(data)
    return not survey.unrecognised and len([function for function in survey.functions if function.exits]) == 1
