"""Read a decoder loop without capture code, which a line at the top of a round can tap."""

from dataclasses import replace

import libcst as cst

from auxtap.tracer.reading.behind import is_stage_exit, returns_in
from auxtap.tracer.reading.forwards import Forward
from auxtap.tracer.reading.loops import DecoderLoop, Running, runnings_of
from auxtap.tracer.reading.mentions import bound_names, find_aliases
from auxtap.tracer.reading.norms import adds_residual, find_final_norm
from auxtap.tracer.reading.rounds import Names, ObjectedError, Round
from auxtap.tracer.reading.surroundings import check_surroundings
from auxtap.tracer.report.readings import Reading
from auxtap.tracer.source.bodies import statements_of
from auxtap.tracer.source.fragments import source_of
from auxtap.tracer.source.walk import find

_STAGED = "PPProxyTensors"
# In releases whose blocks keep the residual to themselves (0.5.21 on) the loop's state is not the whole stream.
_HIDDEN_RESIDUAL = ("residual_batch", "attn_boundary")
_RESIDUAL = "residual"


def read_plain(forward: Forward) -> Reading | None:
    """Return what a line at the top of a round would take; None where no block runs in a loop.

    Safe is: one loop at the function's own level that counts the blocks, one block call in it, and the state named in
    one of two ways: `hidden, residual = layer(...)` with both handed in, or `hidden = layer(...)` with the whole
    stream in one tensor; and the block is given what the names hold at the top of the round.
    """
    if not forward.loops:
        return None
    reading = forward.begin("loop", forward.loops[0].node)
    try:
        return _read(forward, forward.loops[0], reading)
    except ObjectedError as objected:
        return replace(reading, objections=(forward.object(objected.node, objected.reason),))


def _read(forward: Forward, loop: DecoderLoop, reading: Reading) -> Reading:
    check_surroundings(forward)
    if len(forward.loops) > 1:
        raise ObjectedError(forward.loops[1].node, f"{len(forward.loops)} loops run blocks")
    if loop.node not in forward.body:
        raise ObjectedError(loop.node, "the loop runs only on one way through the function")
    if loop.index is None:
        counted = f"for {source_of(loop.node.target)} in {source_of(loop.node.iter)}"
        raise ObjectedError(loop.node, f"the loop does not count the blocks: {counted}")
    running = _only_running(loop)
    hidden, residual = _stream(forward, loop, running)
    before, behind = forward.around(loop.node)
    if residual is not None and not adds_residual(behind, forward.owner, forward.made, hidden, residual):
        reason = "no norm behind the loop adds the residual: whether the state holds it already is not known"
        raise ObjectedError(loop.node, reason)
    _follow(forward, loop, running)
    if len(forward.batches) != 1:
        reason = f"its forward has {len(forward.batches)} parameters of class ForwardBatch"
        raise ObjectedError(forward.function, reason)
    exits = [item for item in behind if is_stage_exit(item, forward.owner)]
    staged = any(name.value == _STAGED for name in find(forward.function, cst.Name))
    if len(exits) > 1 or (staged and not exits):
        raise ObjectedError(loop.node, f"{len(exits)} stage exits stand behind its loop")
    until = behind[: behind.index(exits[0])] if exits else ()
    if leaves := returns_in([*before, loop.node, *until]):
        reason = f"a return at line {forward.fragment.line_of(leaves[0])} may come before it is done"
        raise ObjectedError(leaves[0], reason)
    return replace(
        reading,
        first_line=forward.fragment.line_of(statements_of(loop.node.body)[0]),
        index=loop.index,
        hidden=hidden,
        residual=residual,
        exits=tuple(forward.fragment.line_of(item) for item in exits),
        norm=find_final_norm(behind, forward.owner, forward.made),
    )


def _only_running(loop: DecoderLoop) -> Running:
    calls, runnings = list(loop.calls_in(loop.node.body)), runnings_of(loop)
    if len(calls) != 1:
        raise ObjectedError(calls[1].node, f"a round has {len(calls)} calls of a block")
    if len(runnings) != 1:
        raise ObjectedError(calls[0].node, "what the block returns is not assigned by its call")
    return runnings[0]


def _stream(forward: Forward, loop: DecoderLoop, running: Running) -> tuple[str, str | None]:
    """Return the names of the state and of the residual that the block is given."""
    bound = running.bound
    if len(bound) == 1:
        if bound != running.tensors:
            raise ObjectedError(running.node, f"{bound[0]} is not handed to the block that returns it")
        if any(word in forward.source.text for word in _HIDDEN_RESIDUAL):
            raise ObjectedError(running.node, "the blocks keep the residual out of the loop")
        if _RESIDUAL in running.given or _RESIDUAL in set(bound_names(loop.node.body)):
            raise ObjectedError(running.node, "the block returns one tensor beside a residual")
        return bound[0], None
    if len(bound) != 2 or bound[1] != _RESIDUAL or bound != running.tensors:
        returned = f"({', '.join(bound)})"
        reason = f"the block returns {returned}, not a state and the residual that it was given"
        raise ObjectedError(running.node, reason)
    return bound[0], bound[1]


def _follow(forward: Forward, loop: DecoderLoop, running: Running) -> None:
    """Make sure that the block is given what the names hold at the top of the round."""
    aliases = find_aliases(forward.function, running.tensors, forward.owner)
    following = Round(Names("", running.tensors, aliases), loop, wanted=False)
    start = following.start()
    for way in following.follow(start, loop.round):
        if way.given is None:
            raise ObjectedError(loop.node, "a block may be left out of a round")
        if any(way.given.values.get(name) != start.values[name] for name in running.tensors):
            raise ObjectedError(running.node, "what is taken is changed before it enters the block")
