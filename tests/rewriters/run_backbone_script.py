"""Run models of SGLang on tiny tensors, each in a module all of whose imports are stand-ins; a process of its own.

Reads jobs as JSON from stdin: the patched source of a model's file, the sources of what its blocks capture with, the
table of backbones. The tap's own arming chooses the layers. What reaches the logits processor, or the tap at the exit
of a stage, is compared with what entered the blocks. Prints for each job the first fault, "" where there is none.
"""

import builtins
import functools
import inspect
import json
import signal
import sys
import types
import typing

import numpy as np

from auxtap.tap import arming, backbones
from auxtap.tap.config import RefusedError
from auxtap.tests.rewriters import tiny_tensors as tiny
from auxtap.tests.rewriters.tiny_models import (
    N_LAYERS,
    NOTHING,
    WIDTH,
    Batch,
    Group,
    Loose,
    Module,
    ModuleList,
    Part,
    Proxy,
    Stream,
    TinyNorm,
    World,
    gathered,
)

LIMIT_S = 10
BROKEN = "does not run at all"
REAL = (
    "__future__", "abc", "collections", "contextlib", "copy", "dataclasses", "enum",
    "functools", "itertools", "operator", "typing", "types",
)  # fmt: skip


world: World
real_import = builtins.__import__
sources: dict[str, str] = {}
served: dict[str, types.ModuleType] = {}


def stack_of(_n: int, make: typing.Callable[..., typing.Any], *given: typing.Any, **named: typing.Any) -> typing.Any:
    layers = ModuleList([make(idx=number, prefix="") for number in range(N_LAYERS)])
    return (layers, *world.bounds()) if given or named.keys() & {"pp_size", "stage_facts"} else layers


def start_block(self: typing.Any, *_: typing.Any, **named: typing.Any) -> None:
    """Stand in for a block's `__init__`; its forward is the tree's own."""
    number = named.get("layer_id", named.get("layer_idx", named.get("idx", 0)))
    self.layer_id = number
    self.self_attn, self.mlp = Part(number, in_place=False), Part(number, in_place=True)
    self.input_layernorm, self.post_attention_layernorm = TinyNorm(), TinyNorm()
    if "sglang.srt.layers.layer_boundary.stage" in sources:
        self.attn_boundary, self.ffn_boundary = boundary(self.input_layernorm), boundary(self.post_attention_layernorm)
    elif "sglang.srt.layers.communicator" in sources:
        self.layer_communicator = communicator(self.input_layernorm, self.post_attention_layernorm)


def recorded(run: typing.Callable[..., typing.Any]) -> typing.Callable[..., typing.Any]:
    """Note what a block is given, where it is called from outside, in whatever way."""

    def call(self: typing.Any, *given: typing.Any, **named: typing.Any) -> typing.Any:
        if world.within:
            return run(self, *given, **named)
        arguments = dict(zip(self.parameters, given, strict=False)) | named
        stream = arguments["forward_batch"].residual_stream
        carried = arguments.get("residual") if stream is None or stream.pending is None else stream.residual
        world.enter(self.layer_id, arguments["hidden_states"], carried)
        world.within = True
        try:
            return run(self, *given, **named)
        finally:
            world.within = False

    return call


def communicator(entry: TinyNorm, middle: TinyNorm) -> typing.Any:
    """Return the tree's own communicator, its work on the rows replaced by the norms alone."""

    def prepare(state: typing.Any, residual: typing.Any, *_: typing.Any, **__: typing.Any) -> typing.Any:
        return (entry(state), state) if residual is None else entry(state, residual)

    made = object.__new__(module_of("sglang.srt.layers.communicator").LayerCommunicator)
    vars(made).update(
        prepare_attn=prepare,
        prepare_mlp=lambda state, residual, *_, **__: middle(state, residual),
        postprocess_layer=lambda state, residual, *_, **__: (state, residual),
        should_use_reduce_scatter=lambda *_: False,
        should_fuse_mlp_allreduce_with_next_layer=lambda *_: False,
        _communicate_simple_fn=lambda hidden_states, **_: hidden_states,
        _post_attn_residual_is_read_only=lambda *_: False,
        _context=None,
    )
    return made


class Exit:
    """What an FFN's exit gives."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __enter__(self) -> "Exit":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def finish(self, state: typing.Any) -> typing.Any:
        self.batch.residual_stream.pending = state
        return state


def boundary(norm: TinyNorm) -> typing.Any:
    """Return a boundary whose entry into attention is the tree's own, its work on the rows replaced by the norm."""

    def select(state: typing.Any, _batch: typing.Any) -> typing.Any:
        entry = types.SimpleNamespace(
            capture_move=None,
            capture_move_allocates=False,
            capture_preserves_residual=None,
            input_move=None,
            input_retainable=False,
        )
        return state, types.SimpleNamespace(entry=entry)

    def enter(state: typing.Any, stream: Stream, *_: typing.Any, **__: typing.Any) -> typing.Any:
        given = None if stream.pending is None else stream.residual
        result = (norm(state), state) if given is None else norm(state, given)
        stream.residual, stream.pending = result[1], None
        return result[0], stream

    made = object.__new__(module_of("sglang.srt.layers.layer_boundary.stage").StageBoundary)

    def prepare(state: typing.Any, batch: Batch, *, cache: typing.Any = None, **call: typing.Any) -> typing.Any:
        state, batch.residual_stream = made._prepare_attention(state, batch.residual_stream, batch, **call)
        return state

    def from_pp(tensors: Proxy, batch: Batch, **_: typing.Any) -> typing.Any:
        batch.residual_stream = Stream(tensors["residual"], tensors["hidden_states"])
        return tensors["hidden_states"]

    vars(made).update(_select=select, _prepare=enter, prepare=prepare, from_pp=from_pp, plan=Loose())
    vars(made).update(exit=Exit, finish=lambda state, batch: Exit(batch).finish(state))
    return made


def start(batch: Batch) -> None:
    batch.residual_stream = Stream()


def to_pp(state: typing.Any, batch: Batch) -> Proxy:
    return Proxy({"hidden_states": state, "residual": batch.residual_stream.residual})


def final_norm(
    state: typing.Any, batch: Batch, norm: typing.Any, capture: typing.Any = None, **_: typing.Any
) -> typing.Any:
    state, residual = norm(state, batch.residual_stream.residual)
    if capture is not None:
        capture(residual)
    return state


RESIDUAL_BATCH = types.SimpleNamespace(
    start=start,
    to_pp=to_pp,
    final_norm=final_norm,
    complete_output=lambda state, batch: state,
    snapshot=lambda state, batch: batch.residual_stream.sum(state),
    stream_of=lambda batch: batch.residual_stream,
)
NAMED = {
    "RMSNorm": TinyNorm,
    "make_layers": stack_of,
    "make_pp_layers": stack_of,
    "PPProxyTensors": Proxy,
    "tensor_model_parallel_all_gather": gathered,
    "get_pp_group": lambda: world.group,
    "get_parallel": lambda: Loose(pp_group=world.group, tp_size=1, tp_rank=0, attn_tp_size=1),
    "get_pp_indices": lambda *_: world.bounds(),
    "get_moe_a2a_backend": lambda: Loose(is_deepep=lambda: world.a2a),
    "is_deepep_class_backend": lambda: world.a2a,
    "get_global_server_args": lambda: Loose(fast_path=world.fast),
    "add_prefix": lambda name, prefix: name,
}
AT = {"sglang.srt.layers.layer_boundary.residual": {"batch": RESIDUAL_BATCH}}
NN = Loose(Module=Module, ModuleList=ModuleList, Identity=Module)
TORCH = Loose(**tiny.functions(), nn=NN)


class StandIn(types.ModuleType):
    """A module of which anything may be imported."""

    def __getattr__(self, name: str) -> typing.Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ == "torch":
            return getattr(TORCH, name)
        if self.__name__ == "torch.nn":
            return getattr(NN, name)
        known = AT.get(self.__name__, {}).get(name, NAMED.get(name))
        if known is not None:
            return known
        return getattr(module_of(self.__name__), name) if self.__name__ in sources else NOTHING


def stand_in(
    name: str, globals_: typing.Any = None, locals_: typing.Any = None, wanted: typing.Any = (), level: int = 0
) -> typing.Any:
    if level == 0 and name.partition(".")[0] in REAL:
        return real_import(name, globals_, locals_, wanted, level)
    return StandIn(name if wanted else name.partition(".")[0])


def module_of(name: str) -> types.ModuleType:
    """Return a module of the tree, made from the job's source, its imports stand-ins."""
    if name not in served:
        made = served[name] = types.ModuleType(name)
        made.__dict__["__builtins__"] = {**vars(builtins), "__import__": stand_in}
        sys.modules[name] = made
        exec(compiled(name, sources[name]), made.__dict__)
    return served[name]


@functools.cache
def compiled(name: str, source: str) -> types.CodeType:
    return compile(source, name, "exec", dont_inherit=True)


class Config:
    """A model's configuration: numbers, and nothing that switches anything on."""

    num_hidden_layers, hidden_size, vocab_size, pad_token_id, rms_norm_eps = N_LAYERS, WIDTH, 8, 0, 1e-6
    first_k_dense_replace, n_routed_experts, num_experts_per_tok, model_type, architectures = 1, 4, 2, "tiny", ["Tiny"]
    qk_rope_head_dim, num_attention_heads, num_key_value_heads = 2, 1, 1


class Embedding(Module):
    """Gives the stream that enters the first block."""

    def forward(self, ids: typing.Any) -> tiny.Tensor:
        return first_state(len(ids))


def first_state(rows: int) -> tiny.Tensor:
    return tiny.Tensor(np.random.default_rng(7).normal(size=(rows, WIDTH)).astype(np.float32))


def make_block(kind: typing.Any) -> None:
    """Have a class of the tree make blocks of tiny parts, which note what they are given."""
    own = tuple(inspect.signature(kind.forward).parameters)[1:]
    # One that was put in the forward's place may take anything.
    kind.parameters = own if "forward_batch" in own else ("positions", "hidden_states", "forward_batch", "residual")
    if "forward" in vars(kind):
        kind.forward = recorded(vars(kind)["forward"])
    kind.__call__ = recorded(kind.__call__)
    kind.__init__, kind.__getattr__ = start_block, Part.__getattr__


def build(module: types.ModuleType, job: dict[str, typing.Any]) -> typing.Any:
    """Return the model, its backbone built by its own `__init__`."""
    for each in list(vars(module).values()):
        if isinstance(each, type) and "DecoderLayer" in each.__name__ and issubclass(each, Module):
            make_block(each)
    backbone = getattr(module, job["backbone"])(Config())
    backbone.embed_tokens = Embedding()
    if world.group.is_last_rank:
        backbone.norm = TinyNorm()
    kind = getattr(module, job["head"])
    head = object.__new__(kind)
    if "__getattr__" not in vars(kind):
        kind.__getattr__ = Part.__getattr__
    vars(head).update(model=backbone, config=Config(), pp_group=world.group, capture_aux_hidden_states=False)

    def processor(
        ids: typing.Any,
        state: typing.Any,
        lm_head: typing.Any,
        batch: typing.Any,
        aux: typing.Any = None,
        *_: typing.Any,
        **__: typing.Any,
    ) -> None:
        world.arrive(aux)

    vars(head).update(logits_processor=processor, lm_head=NOTHING)
    return head


def run_forward(head: typing.Any, rows: int, mode: str, embeds: bool) -> None:
    batch = Batch(mode)
    given: dict[str, typing.Any] = {
        "input_ids": tiny.Tensor(np.arange(rows)),
        "positions": tiny.Tensor(np.arange(rows)),
        "forward_batch": batch,
    }
    if embeds:
        given["input_embeds"] = first_state(rows)
    if not world.group.is_first_rank:
        given["pp_proxy_tensors"] = Proxy({"hidden_states": first_state(rows), "residual": first_state(rows) * 3})
    world.entered.clear()
    world.arrived, world.n_arrivals = None, 0
    head(**given)


class Gate:
    """What the gate gives while the tap is on."""

    def stage(self, backbone: typing.Any, states: typing.Any, batch: typing.Any) -> None:
        if not world.group.is_last_rank:
            world.arrive(states)


def fault_of(own: tuple[int, ...]) -> str:
    """Return how what arrived differs from what entered the blocks, "" if it does not."""
    if world.n_arrivals != 1:
        return f"states arrived {world.n_arrivals} times"
    states = world.arrived or []
    if len(states) != len(own):
        return f"{len(states)} states for {len(own)} layers"
    for layer, state in zip(own, states, strict=True):
        entered = world.entered.get(layer, [])
        if not entered:
            return f"block {layer} never ran"
        for truth in entered:
            meant = np.concatenate([truth, truth + np.float32(1000)]) if world.a2a and layer > 1 else truth
            if state.shape != meant.shape:
                return f"the state of layer {layer} has shape {state.shape}"
            if state.dtype != meant.dtype:
                return f"the state of layer {layer} is of another type"
            if not np.allclose(state, meant, rtol=1e-5, atol=1e-5):
                return f"the state of layer {layer} is not what entered block {layer}"
    return ""


# (stages, this stage, layers, rows, mode, with what a drift does under a setting of its own, and with embeddings)
SCENARIOS = (
    (1, 0, (1, 3, 4), 3, "extend", False),
    (1, 0, (2,), 2, "mixed", True),
    (1, 0, (1, 2, 3, 4, 5), 5, "extend", False),
    (2, 0, (1, 2, 4), 3, "extend", False),
    (2, 1, (1, 3, 5), 2, "extend", False),
)


def run_job(job: dict[str, typing.Any], *, armed: bool) -> str:
    """Return the first fault of a job, in any scenario; not armed, the model only runs."""
    global world
    names = ("CAPTURES", "LOOPS", "REFUSED", "NORMS", "MARKS")
    vars(backbones).update({name: {} for name in names})
    exec(job["table"], vars(backbones))
    for a2a in (False, True) if job["gathers"] else (False,):
        for size, rank, layers, rows, mode, other in SCENARIOS:
            if size > 1 and (a2a or (rank == 0 and not job["staged"])):
                continue
            world = World(Group(rank, size), a2a, other)
            sources.clear()
            sources.update(job["sources"])
            served.clear()
            module = module_of(job["module"])
            head = build(module, job)
            if not armed:
                run_forward(head, rows, mode, other)
                continue
            try:
                found = arming.find_backbone(head)
                config: typing.Any = types.SimpleNamespace(layers=layers)
                own = arming.arm_backbone(found, config, N_LAYERS, size)
            except RefusedError as error:
                return f"refused at start: {error}"
            module.__dict__["_auxtap"] = Gate()
            # Twice, so that what one forward leaves behind is seen in the next.
            for _ in range(2):
                run_forward(head, rows, mode, other)
                if fault := fault_of(own):
                    return f"{fault} ({mode}, stage {rank} of {size})"
    return ""


def judge(job: dict[str, typing.Any]) -> str:
    """Return the first fault, "" where there is none; one that comes without a capture too is the model's own."""
    signal.alarm(LIMIT_S)
    try:
        return run_job(job, armed=True)
    except Exception as error:
        try:
            run_job(job, armed=False)
        except Exception:
            return BROKEN
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    json.dump([judge(job) for job in json.load(sys.stdin)], sys.stdout)
