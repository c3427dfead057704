"""Hazards of a layer loop that misses states or fails, and of the file it stands in."""

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.branches.stage_uses import names_within
from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.flow.evidence import evidence_at, evidence_of
from auxtap.tracer.hazards.capturing import capturing_functions, sites_of
from auxtap.tracer.hazards.found import Found
from auxtap.tracer.hazards.settings import Settings
from auxtap.tracer.report.entries import FileTrace
from auxtap.tracer.report.trace_report import Evidence
from auxtap.tracer.sites.shapes import is_kind
from auxtap.tracer.source.fragments import Fragment, last_name, source_of
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.walk import find

_LAYERS = m.Attribute(value=m.Name("self"), attr=m.Name("layers"))
_COUNTING = frozenset({"len", "enumerate", "range", "zip"})


def two_batch_overlap(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Found]:
    """Layers given to a function that overlaps two halves of a batch, without the list of states."""
    flag = settings.find("enable_two_batch_overlap")
    for call, evidence in _unseen_calls(index, trace):
        if _overlaps(call):
            yield Found((evidence,), default_on=flag is not None and flag.default == "True")


def skipped_layers(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Found]:
    """Layers given to another function, without the list of states."""
    for call, evidence in _unseen_calls(index, trace):
        if not _overlaps(call):
            yield Found((evidence,))


def _unseen_calls(index: ClassIndex, trace: FileTrace) -> Iterator[tuple[cst.Call, Evidence]]:
    """Yield the calls that run layers and are reached while layers are captured, but do not get the states."""
    given = m.Arg(value=_LAYERS | m.Subscript(value=_LAYERS, slice=[m.SubscriptElement(slice=m.Slice())]))
    pattern = m.Call(args=[m.ZeroOrMore(), given, m.ZeroOrMore()])
    for fragment, function in capturing_functions(index, trace):
        for call in find(function.body, cst.Call, pattern):
            handed = {kind_of(name) for name in names_within(call.args)}
            if Kind.STATES in handed or _callee(call) in _COUNTING or _runs_only_without_capture(fragment, call):
                continue
            yield call, evidence_at(index.source(trace.file), fragment, call)


def _callee(call: cst.Call) -> str:
    return last_name(call.func) or source_of(call.func)


def _overlaps(call: cst.Call) -> bool:
    return "tbo" in _callee(call).split("_") or _asks_for_two_batches(call)


def _asks_for_two_batches(call: cst.Call) -> bool:
    return any(argument.keyword is not None and "tbo" in argument.keyword.value.split("_") for argument in call.args)


def _runs_only_without_capture(fragment: Fragment, call: cst.Call) -> bool:
    """Tell whether a branch around the call asks that there be no layers to capture."""
    for ancestor in fragment.ancestors_of(call):
        if isinstance(ancestor, cst.If):
            for inverted in find(ancestor.test, cst.UnaryOperation, m.UnaryOperation(operator=m.Not())):
                if is_kind(inverted.expression, Kind.LAYERS):
                    return True
    return False


def unpack_trap(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Found]:
    """With the switch on and nothing captured a plain tensor comes back, and its rows are unpacked."""
    tests = [site for site in sites_of(trace, "empty_test") if site.scope.endswith(".forward")]
    unpacks = sites_of(trace, "unpack")
    flags = {site.scope for site in sites_of(trace, "flag_test")}
    unpacks = [site for site in unpacks if site.scope in flags]
    if tests and unpacks:
        yield Found(tuple(evidence_of(trace, site) for site in (*tests, *unpacks)))


def first_layer(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Found]:
    """Before the first block there is no residual yet, and the sum that is captured does not exist."""
    pattern = m.Assign(targets=[m.AssignTarget(target=m.Name())], value=m.Name("None"))
    source = index.source(trace.file)
    for fragment, function in capturing_functions(index, trace):
        empty = {
            last_name(assign.targets[0].target): assign
            for statement in function.body.body
            for assign in find(statement, cst.Assign, pattern)
            if _in_first_arm(fragment, assign)
        }
        for site in sites_of(trace, "append"):
            operands = [part.strip() for part in (site.value or "").split(" + ")]
            used = [name for name in operands[1:] if name in empty]
            if used and site.side == "input" and fragment.unit.first_line <= site.line <= fragment.unit.last_line:
                yield Found((evidence_of(trace, site), evidence_at(source, fragment, empty[used[0]])))


def _in_first_arm(fragment: Fragment, node: cst.CSTNode) -> bool:
    branch = next((item for item in fragment.ancestors_of(node) if isinstance(item, cst.If)), None)
    return branch is None or "is_first_rank" in names_within([branch.test])


def byte_order_mark(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Found]:
    """A file that begins with a byte-order mark breaks tools that read it as text."""
    if index.tree.files[trace.file].startswith(b"\xef\xbb\xbf"):
        line = index.source(trace.file).outline.lines[0].strip()
        yield Found((Evidence(trace.file, 1, "<module>", line),))
