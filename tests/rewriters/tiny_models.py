"""Stand-ins for what a model of SGLang is made of and runs in, on tiny tensors; for `run_backbone_script.py`."""

import types
import typing

import numpy as np

from auxtap.tests.rewriters import tiny_tensors as tiny

N_LAYERS, WIDTH = 6, 4


class Nothing:
    """Stands for what a forward does without: false, empty, and whatever is asked of it is another one."""

    def __getattr__(self, name: str) -> typing.Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return NOTHING

    def __call__(self, *given: typing.Any, **_: typing.Any) -> typing.Any:
        only = given[0] if len(given) == 1 and isinstance(given[0], types.FunctionType | type) else None
        return NOTHING if only is None else only

    def __mro_entries__(self, bases: tuple[typing.Any, ...]) -> tuple[type, ...]:
        return ()

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> typing.Iterator[typing.Any]:
        return iter(())

    def __getitem__(self, key: typing.Any) -> typing.Any:
        return NOTHING

    def __setitem__(self, key: typing.Any, value: typing.Any) -> None:
        return None

    def __len__(self) -> int:
        return 0

    def __enter__(self) -> typing.Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __or__(self, other: typing.Any) -> typing.Any:
        return self

    __ror__ = __or__


def _number(self: Nothing, *_: typing.Any) -> int:
    return 0


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "int"):
    setattr(Nothing, f"__{_name}__", _number)
for _name in ("index", "lt", "gt", "ge", "le"):
    setattr(Nothing, f"__{_name}__", _number)
NOTHING = Nothing()


class Module:
    """torch.nn.Module as far as it is needed."""

    def __init__(self, *_: typing.Any, **__: typing.Any) -> None:
        return None

    forward: typing.Any

    def __call__(self, *given: typing.Any, **named: typing.Any) -> typing.Any:
        return self.forward(*given, **named)

    def modules(self) -> typing.Iterator["Module"]:
        yield self
        for value in list(vars(self).values()):
            if isinstance(value, Module):
                yield from value.modules()


class ModuleList(list[typing.Any], Module):
    """A list of modules."""

    def __init__(self, modules: typing.Iterable[typing.Any] = ()) -> None:
        list.__init__(self, modules)

    def modules(self) -> typing.Iterator[Module]:
        yield self
        for each in self:
            yield from each.modules()

    def __getitem__(self, key: typing.Any) -> typing.Any:
        found = list.__getitem__(self, key)
        return ModuleList(found) if isinstance(key, slice) else found

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


class TinyNorm(Module):
    """Adds and norms in place, as the fused kernels do: the sum into the residual, the norm over what it was given."""

    def forward(self, state: tiny.Tensor, residual: typing.Any = None, *_: typing.Any, **__: typing.Any) -> typing.Any:
        if residual is None:
            return tiny.Tensor(_normed(state.array))
        residual.array += state.array
        state.array[...] = _normed(residual.array)
        return state, residual


def _normed(array: tiny.Array) -> tiny.Array:
    return (array * np.float32(0.5) + np.float32(0.25)).astype(array.dtype)


class Part(Module):
    """Attention (a new tensor) or MLP (over what it was given)."""

    def __init__(self, number: int, in_place: bool) -> None:
        self.number, self.in_place = number, in_place

    def __getattr__(self, name: str) -> typing.Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return NOTHING

    def forward(self, *given: typing.Any, **named: typing.Any) -> typing.Any:
        state = next(each for each in (*given, *named.values()) if isinstance(each, tiny.Tensor) and each.dim() == 2)
        made = (np.tanh(state.array) + np.float32(0.125 * (self.number + 1))).astype(state.array.dtype)
        return state.copy_(made) if self.in_place else tiny.Tensor(made)


class Stream:
    """The residual that a batch carries from 0.5.21 on."""

    def __init__(self, residual: typing.Any = None, pending: typing.Any = None) -> None:
        self.residual, self.pending = residual, pending

    def complete(self, state: typing.Any) -> typing.Any:
        return state

    def export(self, state: typing.Any) -> tuple[typing.Any, typing.Any]:
        return state, None if self.pending is None else self.residual

    def sum(self, state: typing.Any) -> typing.Any:
        return state.clone() if self.pending is None or self.residual is None else state + self.residual

    snapshot = sum


class Batch:
    """A ForwardBatch of a prefill."""

    def __init__(self, mode: str) -> None:
        self.residual_stream: typing.Any = None
        self.can_run_tbo = False
        self.forward_mode = Mode(mode)
        self.aux_hidden_states_buffer = None

    def __getattr__(self, name: str) -> typing.Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return NOTHING


class Mode:
    """Answers every `is_...()`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> typing.Any:
        if not name.startswith("is_"):
            raise AttributeError(name)
        on = name == f"is_{self.name}" or name in ("is_extend", "is_prefill")
        return lambda *_, **__: on


class Proxy:
    """PPProxyTensors."""

    def __init__(self, tensors: dict[str, typing.Any]) -> None:
        self.tensors = tensors

    def __getitem__(self, key: str) -> typing.Any:
        return self.tensors[key]


class Group:
    """The pipeline group, as one stage sees it."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank_in_group, self.world_size = rank, size
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1


class World:
    """The scenario that runs, and what was seen in it: what entered each block, and what arrived."""

    def __init__(self, group: Group, a2a: bool, fast: bool) -> None:
        self.group, self.a2a, self.fast = group, a2a, fast
        self.within = False
        self.entered: dict[int, list[tiny.Array]] = {}
        self.arrived: list[typing.Any] | None = None
        self.n_arrivals = 0

    def bounds(self) -> tuple[int, int]:
        share = N_LAYERS // self.group.world_size
        return self.group.rank_in_group * share, (self.group.rank_in_group + 1) * share

    def enter(self, number: int, state: typing.Any, residual: typing.Any) -> None:
        total = state.array if residual is None else state.array + residual.array
        self.entered.setdefault(number, []).append(total.copy())

    def arrive(self, states: typing.Any) -> None:
        self.n_arrivals += 1
        self.arrived = None if states is None else _copies(states)


def _copies(states: typing.Any) -> list[typing.Any]:
    if hasattr(states, "finalize"):
        states = states.finalize()
    if isinstance(states, tiny.Tensor):
        return [part.copy() for part in np.split(states.array, max(states.shape[-1] // WIDTH, 1), axis=-1)]
    return [each.array.copy() for each in states]


class Loose(types.SimpleNamespace):
    """Has what it is given, and stand-ins for all else."""

    def __getattr__(self, name: str) -> typing.Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return NOTHING


def gathered(state: tiny.Tensor, dim: int = 0) -> tiny.Tensor:
    """Gather over two ranks; what the other holds differs by a number."""
    return tiny.cat([state, state.add(np.float32(1000))], dim=dim)
