"""Object to what the rest of a function does to the blocks, to their numbers and to what its loop is to capture."""

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.reading.behind import is_end, is_stage_exit, returns_in
from auxtap.tracer.reading.forwards import Forward
from auxtap.tracer.reading.loop_frames import Frame, only_value
from auxtap.tracer.reading.loops import BLOCKS, DecoderLoop
from auxtap.tracer.reading.mentions import UNSEEN, attribute_of, bound_names, touches
from auxtap.tracer.reading.rounds import Names, ObjectedError
from auxtap.tracer.sites.shapes import choices_of
from auxtap.tracer.source.fragments import last_name, source_of
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.walk import find, parents_of

# Calls behind the loop that return the final state: norms aside, those that complete it (0.5.21 on), that reduce it,
# that run two batches, and that join rows under context parallelism, which is refused with the tap.
_FINISHES = frozenset(
    {
        *("complete_output", "fold", "take_output", "finish_layer_stack", "finalize", "mix"),
        *("tensor_model_parallel_all_reduce", "model_forward_maybe_tbo", "model_forward_stages"),
        *("cp_all_gather_rerange_output", "cp_gather_after_forward"),
    }
)
STAGE = ("start_layer", "end_layer")


def check_function(forward: Forward, loop: DecoderLoop, frame: Frame, names: Names) -> None:
    """Object to what the rest of the function does to the blocks, their numbers and what is to be captured."""
    function, tracked = forward.function, {*names.aliases, names.accumulator}
    for word in find(function.body, cst.Name):
        if word.value in UNSEEN:
            raise ObjectedError(word, f"it uses {word.value}, which reaches what is captured unseen")
    for inner in (*find(function.body, cst.FunctionDef), *find(function.body, cst.Lambda)):
        if touches(inner, tracked):
            raise ObjectedError(inner, "a function within it that touches a state is not followed")
    kept = m.AssignTarget(target=m.Attribute() | m.Subscript())
    for assign in (each for part in (*_before(forward, frame), loop.node) for each in find(part, cst.Assign)):
        if any(m.matches(target, kept) for target in assign.targets) and touches(assign.value, names.aliases):
            raise ObjectedError(assign, "where it keeps a state is not followed")
    parents = parents_of(function)
    for node in find(function.body, cst.Attribute):
        name = attribute_of(node, forward.owner)
        if name is not None and not _is_harmless(forward, name, node, parents):
            raise ObjectedError(node, f"what it does to self.{name} is not followed")
    if leaves := returns_in(_before(forward, frame)):
        raise ObjectedError(leaves[0], "a return may come before it captures")


def check_final(forward: Forward, behind: tuple[cst.CSTNode, ...], hidden: str) -> None:
    """Object to a final state that is made in a way of its own: where its rows are joined, those captured are parts.

    Raises:
        ObjectedError: it is bound to something else than what a known call returns.
    """
    for statement in behind:
        part = (
            statement.orelse if isinstance(statement, cst.If) and is_stage_exit(statement, forward.owner) else statement
        )
        for assign in () if part is None else find(part, cst.Assign):
            known = all(isinstance(each, cst.Call) and _finishes(each) for each in choices_of(assign.value))
            if hidden in set(bound_names(assign)) and not known:
                raise ObjectedError(assign, "what is made the final state here is not followed")


def _finishes(call: cst.Call) -> bool:
    name = last_name(call.func) or ""
    return name in _FINISHES or "norm" in name or "norm" in source_of(call.func)


def _before(forward: Forward, frame: Frame) -> tuple[cst.CSTNode, ...]:
    """Return the statements that run before the loop."""
    return (*forward.body[: forward.body.index(frame.made)], frame.made, *frame.between)


def _is_harmless(forward: Forward, name: str, node: cst.Attribute, parents: dict[cst.CSTNode, cst.CSTNode]) -> bool:
    """Tell whether a use of an attribute of self leaves the blocks and what chooses among them as they are."""
    listed = kind_of(name) is Kind.LAYERS
    if not listed and name not in (BLOCKS, *STAGE):
        return True
    parent = parents[node]
    target: cst.CSTNode = node
    while isinstance(parent, cst.Subscript | cst.Attribute):
        if isinstance(parent, cst.Attribute) and target is node:
            return False
        target, parent = parent, parents[parent]
    if getattr(parent, "target", None) is target or isinstance(parent, cst.AsName):
        return False
    if listed:
        asked = isinstance(parent, cst.ComparisonTarget | cst.UnaryOperation)
        return asked or m.matches(parents[parent], m.Call(func=m.Name("len")))
    if name == BLOCKS and target is node:
        call = parents[parent] if isinstance(parent, cst.Arg) else None
        counted = call is not None and m.matches(call, m.Call(func=m.Name("len") | m.Name("enumerate")))
        return counted or _runs_two_batches(forward, node, parents)
    return True


def _runs_two_batches(forward: Forward, node: cst.CSTNode, parents: dict[cst.CSTNode, cst.CSTNode]) -> bool:
    child = node
    while (parent := parents.get(child)) is not None:
        if isinstance(parent, cst.If) and parent.body is child and forward.two_batches(parent.test):
            return True
        child = parent
    return False


def check_bounds(forward: Forward, loop: DecoderLoop) -> None:
    """Object to locals between which the loop counts, unless they are those of the stage but for two batches."""
    if loop.node.orelse is not None:
        raise ObjectedError(loop.node.orelse, "an else of the loop is not followed")
    if loop.index is None:
        counted = f"for {source_of(loop.node.target)} in {source_of(loop.node.iter)}"
        raise ObjectedError(loop.node, f"the loop does not count the blocks: {counted}")
    if loop.is_foreign():
        raise ObjectedError(loop.node, "the loop counts the blocks of another")
    for bound, wanted in zip(loop.bounds, STAGE, strict=False):
        fits = False
        for statement in forward.body:
            if bound not in set(bound_names(statement)) or statement is loop.node:
                continue
            if isinstance(statement, cst.If) and forward.two_batches(statement.test):
                if statement.orelse is not None and bound in set(bound_names(statement.orelse)):
                    raise ObjectedError(statement, f"what {bound} is bound to is not followed")
                continue
            value = only_value(statement, bound)
            if value is None or attribute_of(value, forward.owner) != wanted:
                raise ObjectedError(statement, f"{bound} is not the stage's own")
            fits = True
        if not fits:
            raise ObjectedError(loop.node, f"{bound} is not the stage's own")


def names_of_the_end(forward: Forward) -> frozenset[str]:
    """Return the locals that hold the number of the last block plus one, and nothing else."""
    names: dict[str, bool] = {}
    for statement in find(forward.function.body, cst.SimpleStatementLine):
        for name in bound_names(statement):
            value = only_value(statement, name)
            names[name] = value is not None and is_end(value, forward.owner) and name not in names
    return frozenset(name for name, fits in names.items() if fits)
