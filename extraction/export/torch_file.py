"""Write dictionaries of tensors as torch does; torch is imported when the first is written."""

import importlib.util
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from auxtap.core.errors import UsageError

TORCH_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "I64": "int64", "U8": "uint8"}


def require_torch(name: str) -> None:
    """Raise UsageError when torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            f"format {name} needs torch, which is not installed beside auxtap",
            hint="pip install 'auxtap[pt]', or run auxtap with a Python that has torch",
        )


def tensor_of(data: NDArray[Any], dtype: str, shape: tuple[int, ...]) -> Any:
    """Return bytes as a tensor of their own of safetensors' `dtype`."""
    import torch

    flat = torch.from_numpy(np.array(data, copy=True).reshape(-1).view(np.uint8))
    return flat.view(getattr(torch, TORCH_DTYPES[dtype])).reshape(shape)


def integers(values: NDArray[np.int64], shape: tuple[int, ...]) -> Any:
    """Return whole numbers as an int64 tensor of their own."""
    return tensor_of(values.astype(np.int64), "I64", shape)


def save(values: Mapping[Any, Any], file: BinaryIO) -> None:
    """Write a dictionary that `torch.load(weights_only=True)` reads."""
    import torch

    torch.save(dict(values), file)
