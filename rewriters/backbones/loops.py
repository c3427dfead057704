"""Recognise decoder loops: the block that a round runs, and the state that enters it."""

import ast
from dataclasses import dataclass

LAYERS = "layers"
# In releases whose blocks keep the residual to themselves (0.5.21 on) the loop's state is not the whole stream.
_HIDDEN_RESIDUAL = ("residual_batch", "attn_boundary")


@dataclass(frozen=True)
class BlockCall:
    """`hidden[, residual] = layer(...)` in a loop whose `index` is the number of the block."""

    line: int
    index: str
    hidden: str
    residual: str | None


@dataclass(frozen=True)
class PlainLoop:
    """A decoder loop without capture code, and the line of the first statement of a round."""

    class_name: str
    function: str
    owner: str
    loop_line: int
    first_line: int
    call: BlockCall

    @property
    def scope(self) -> str:
        """The qualified name of the function."""
        return f"{self.class_name}.{self.function}"


@dataclass(frozen=True)
class Refusal:
    """Why a loop cannot be tapped safely."""

    reason: str


def loop_index(loop: ast.For, owner: str) -> str | None:
    """Return the name that counts the blocks from 0 over the whole model, None when the loop counts otherwise."""
    iterated = loop.iter
    if not isinstance(iterated, ast.Call) or not isinstance(iterated.func, ast.Name):
        return None
    if iterated.func.id == "range" and isinstance(loop.target, ast.Name):
        return loop.target.id if _counts_blocks(iterated.args, owner) else None
    pair = isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == 2 and not iterated.keywords
    if iterated.func.id == "enumerate" and _begins_at_its_stage(loop, owner):
        return _first_name(loop)
    if iterated.func.id == "enumerate" and pair and isinstance(loop.target, ast.Tuple) and len(iterated.args) == 1:
        first = loop.target.elts[0]
        return (
            first.id if ast.unparse(iterated.args[0]) == f"{owner}.{LAYERS}" and isinstance(first, ast.Name) else None
        )
    return None


def _first_name(loop: ast.For) -> str | None:
    first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else None
    return first.id if isinstance(first, ast.Name) else None


def _begins_at_its_stage(loop: ast.For, owner: str) -> bool:
    """Tell whether a loop enumerates its stage's blocks and first of all adds the number of the first one."""
    texts = [ast.unparse(argument) for argument in getattr(loop.iter, "args", [])]
    begin = f"{owner}.start_layer"
    if len(texts) != 1 or not texts[0].startswith(f"{owner}.{LAYERS}[{begin}:"):
        return False
    name = _first_name(loop)
    return ast.unparse(loop.body[0]) in (f"{name} = {name} + {begin}", f"{name} += {begin}")


def _counts_blocks(arguments: list[ast.expr], owner: str) -> bool:
    texts = [ast.unparse(argument) for argument in arguments]
    if len(texts) == 1:
        return texts[0] in (f"len({owner}.{LAYERS})", f"{owner}.num_hidden_layers", f"{owner}.config.num_hidden_layers")
    return len(texts) == 2 and texts[0].endswith("start_layer") and texts[1].endswith("end_layer")


def block_calls(loop: ast.For, owner: str) -> list[ast.Call]:
    """Return the calls of a block within a loop, in order: `self.layers[i](...)`, or of the name bound to it."""
    bound = {name for node in ast.walk(loop) if isinstance(node, ast.Assign) for name in _layer_names(node, owner)}
    if isinstance(loop.target, ast.Tuple) and isinstance(loop.target.elts[-1], ast.Name):
        bound.add(loop.target.elts[-1].id)
    found = [node for node in ast.walk(loop) if isinstance(node, ast.Call) and _is_block(node.func, bound, owner)]
    return sorted(found, key=_line)


def _line(node: ast.expr) -> int:
    return node.lineno


def _layer_names(node: ast.Assign, owner: str) -> list[str]:
    if not _is_layer(node.value, owner):
        return []
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _is_layer(node: ast.expr, owner: str) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node.value) == f"{owner}.{LAYERS}"


def _is_block(function: ast.expr, bound: set[str], owner: str) -> bool:
    if isinstance(function, ast.Attribute) and function.attr == "forward":
        function = function.value
    return _is_layer(function, owner) or (isinstance(function, ast.Name) and function.id in bound)


def find_plain_loop(owner: ast.ClassDef, function: ast.FunctionDef, source: bytes) -> PlainLoop | Refusal | None:
    """Return the loop of a function over `self.layers` that a line at its top can tap; None when it has no loop.

    Safe is: one loop at the function's own level that counts the blocks, one block call in it, and the state named in
    one of two ways: `hidden, residual = layer(...)` with both handed in, or `hidden = layer(...)` with the whole
    stream in one tensor.
    """
    name = function.args.args[0].arg if function.args.args else ""
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For) and block_calls(node, name)]
    if not loops:
        return None
    if len(loops) > 1:
        return Refusal(f"{len(loops)} loops run blocks")
    loop = loops[0]
    if loop not in function.body:
        return Refusal("the loop runs only on one way through the function")
    index = loop_index(loop, name)
    if index is None:
        return Refusal(
            f"the loop does not count the blocks: for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"
        )
    call = _block_call(loop, name, index, source)
    if isinstance(call, Refusal):
        return call
    if call.residual is not None and not _adds_at_the_end(owner, function, loop, call):
        return Refusal("no norm behind the loop adds the residual: whether the state holds it already is not known")
    return PlainLoop(owner.name, function.name, name, loop.lineno, loop.body[0].lineno, call)


def _adds_at_the_end(owner: ast.ClassDef, function: ast.FunctionDef, loop: ast.For, call: BlockCall) -> bool:
    """Tell whether an RMS norm of the backbone, which adds them, gets both the state and the residual behind the loop.

    Other norms take a residual too and hand it back untouched (`LayerNorm` of Cohere).
    """
    norms = {name for item in owner.body for name in _rms_norms(item)}
    behind = [node for item in function.body[function.body.index(loop) + 1 :] for node in ast.walk(item)]
    for node in behind:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in norms:
            given = [item.id for item in node.args if isinstance(item, ast.Name)]
            if given[:2] == [call.hidden, call.residual]:
                return True
    return False


def _rms_norms(item: ast.stmt) -> list[str]:
    """Return the attributes that a method binds to an RMS norm."""
    assigned = [node for node in ast.walk(item) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    return [
        ast.unparse(target)
        for node in assigned
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith("RMSNorm")
        for target in node.targets
    ]


def _block_call(loop: ast.For, owner: str, index: str, source: bytes) -> BlockCall | Refusal:
    calls = block_calls(loop, owner)
    if len(calls) != 1:
        return Refusal(f"a round has {len(calls)} calls of a block")
    assigned = [node for node in ast.walk(loop) if isinstance(node, ast.Assign) and node.value is calls[0]]
    if len(assigned) != 1 or len(assigned[0].targets) != 1:
        return Refusal("what the block returns is not assigned by its call")
    target = assigned[0].targets[0]
    names = [
        item.id
        for item in ([target] if isinstance(target, ast.Name) else getattr(target, "elts", []))
        if isinstance(item, ast.Name)
    ]
    given = {node.id for node in ast.walk(calls[0]) if isinstance(node, ast.Name)}
    written = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if isinstance(target, ast.Name):
        if names[0] not in given:
            return Refusal(f"{names[0]} is not handed to the block that returns it")
        if any(word.encode() in source for word in _HIDDEN_RESIDUAL):
            return Refusal("the blocks keep the residual out of the loop")
        if "residual" in written | given:
            return Refusal("the block returns one tensor beside a residual")
        return BlockCall(calls[0].lineno, index, names[0], None)
    if len(names) != 2 or names[1] != "residual" or not set(names) <= given:
        return Refusal(f"the block returns {ast.unparse(target)}, not a state and the residual that it was given")
    return BlockCall(calls[0].lineno, index, names[0], names[1])
