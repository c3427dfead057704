"""Tensors small enough to run a forward by hand: numpy arrays that alias and change in place as torch's do.

Used by `run_backbone_script.py` only. What is not here fails as an attribute that torch does not have would.
"""

import types
import typing

import numpy as np

# The type of the stream, and what it may be turned into, by numpy types that are told apart as easily.
DTYPES = {"bfloat16": np.float32, "float32": np.float64, "float16": np.float16}
Array = np.ndarray[typing.Any, typing.Any]


class Tensor:
    """An array with the part of torch's interface that forwards and their drifts use."""

    # Made below, with their counterparts in place.
    add: typing.Any
    __add__: typing.Any
    __mul__: typing.Any

    def __init__(self, array: Array) -> None:
        self.array = array
        self.device = "cpu"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> typing.Any:
        return self.array.dtype

    def size(self, dim: int | None = None) -> typing.Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.array.ndim

    def numel(self) -> int:
        return int(self.array.size)

    def clone(self) -> "Tensor":
        return Tensor(self.array.copy())

    def detach(self) -> "Tensor":
        return Tensor(self.array)

    data = property(detach)
    contiguous = detach

    def view(self, *shape: typing.Any) -> "Tensor":
        return Tensor(self.array.reshape(shape[0] if isinstance(shape[0], tuple) else shape))

    reshape = view

    def view_as(self, other: "Tensor") -> "Tensor":
        return self.view(other.shape)

    def expand(self, *_: int) -> "Tensor":
        return Tensor(self.array)

    def squeeze(self, dim: int) -> "Tensor":
        return Tensor(self.array.squeeze(dim))

    def unsqueeze(self, dim: int) -> "Tensor":
        return Tensor(np.expand_dims(self.array, dim))

    def flip(self, *dims: int) -> "Tensor":
        return Tensor(np.flip(self.array, dims))

    def roll(self, shift: int, dims: int) -> "Tensor":
        return Tensor(np.roll(self.array, shift, dims))

    def to(self, dtype: typing.Any) -> "Tensor":
        return self if dtype == self.array.dtype else Tensor(self.array.astype(dtype))

    def float(self) -> "Tensor":
        return self.to(DTYPES["float32"])

    def half(self) -> "Tensor":
        return self.to(DTYPES["float16"])

    def new_empty(self, shape: typing.Any) -> "Tensor":
        return Tensor(np.zeros(shape, self.array.dtype))

    def mean(self, dim: int, keepdim: bool = False) -> "Tensor":
        return Tensor(self.array.mean(axis=dim, keepdims=keepdim))

    def copy_(self, other: typing.Any) -> "Tensor":
        self.array[...] = plain(other)
        return self

    def zero_(self) -> "Tensor":
        return self.copy_(0)

    def __getitem__(self, key: typing.Any) -> "Tensor":
        return Tensor(self.array[key])

    def __setitem__(self, key: typing.Any, value: typing.Any) -> None:
        self.array[key] = plain(value)

    def __len__(self) -> int:
        return len(self.array)


def plain(value: typing.Any) -> typing.Any:
    return value.array if isinstance(value, Tensor) else value


def _arithmetic(name: str, calculate: typing.Callable[[typing.Any, typing.Any], Array]) -> None:
    def new(self: Tensor, other: typing.Any) -> Tensor:
        return Tensor(calculate(self.array, plain(other)).astype(self.array.dtype))

    def in_place(self: Tensor, other: typing.Any) -> Tensor:
        self.array[...] = calculate(self.array, plain(other))
        return self

    methods = {f"__{name}__": new, f"__r{name}__": new, name: new, f"__i{name}__": in_place, f"{name}_": in_place}
    for method, function in methods.items():
        setattr(Tensor, method, function)


_arithmetic("add", np.add)
_arithmetic("sub", np.subtract)
_arithmetic("mul", np.multiply)
_arithmetic("truediv", np.divide)
Tensor.div_ = Tensor.truediv_  # type: ignore[attr-defined]


def add(left: Tensor, right: Tensor, *, alpha: float = 1, out: Tensor | None = None) -> Tensor:
    total = Tensor(left.array + plain(right) * np.asarray(alpha, left.array.dtype))
    return total if out is None else out.copy_(total)


def cat(tensors: typing.Sequence[Tensor], dim: int = 0) -> Tensor:
    return Tensor(np.concatenate([each.array for each in tensors], axis=dim))


def functions() -> dict[str, typing.Any]:
    """Return what `torch` has of these."""
    return {
        **{name: np.dtype(kind) for name, kind in DTYPES.items()},
        "Tensor": Tensor,
        "add": add,
        "sub": lambda left, right: Tensor(left.array - right.array),
        "mul": lambda left, right: Tensor(left.array * plain(right)),
        "cat": cat,
        "stack": lambda tensors, dim=0: Tensor(np.stack([each.array for each in tensors], axis=dim)),
        "clone": lambda tensor: tensor.clone(),
        "zeros_like": lambda tensor: Tensor(np.zeros_like(tensor.array)),
        "empty_like": lambda tensor: Tensor(np.zeros_like(tensor.array)),
        "flip": lambda tensor, dims: tensor.flip(*dims),
        "no_grad": unchanged,
        "inference_mode": unchanged,
        "compile": unchanged,
    }


def unchanged(*given: typing.Any, **_: typing.Any) -> typing.Any:
    """Return a decorated function as it is, also where the decorator is called first."""
    functions = [each for each in given if isinstance(each, types.FunctionType)]
    return functions[0] if functions else unchanged
