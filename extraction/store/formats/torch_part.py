"""torch files: a dict of tensors as `torch.save` writes it, read with `weights_only=True`; torch is imported lazily."""

import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from auxtap.core.errors import UsageError
from auxtap.extraction.store.formats.stored_part import LOSS_MASK, MalformedPartError, PartContent, StoredPart
from auxtap.tap.protocol import TensorSlot

_TORCH_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "I64": "int64", "U8": "uint8"}


@dataclass(frozen=True)
class TorchPart:
    """The same tensors under the same names, for trainers that read `.pt`."""

    name: str = "pt"
    suffix: str = ".pt"

    def check_available(self) -> None:
        """Raise UsageError when torch is not installed."""
        if importlib.util.find_spec("torch") is None:
            raise UsageError(
                "format pt needs torch, which is not installed beside auxtap",
                hint="pip install 'auxtap[pt]', or use --format safetensors",
            )

    def write(self, file: BinaryIO, content: PartContent, blocks: Iterable[memoryview], loss_mask: bytes) -> None:
        """Gather the tensors of one part in memory, then save them in the order of the slots."""
        import torch

        data = bytearray()
        for block in blocks:
            data += block
        data += loss_mask
        tensors: dict[str, Any] = {}
        for slot in content.slots:
            dtype = getattr(torch, _TORCH_DTYPES[slot.dtype])
            count = slot.n_bytes // dtype.itemsize
            flat = torch.frombuffer(data, dtype=dtype, count=count, offset=slot.offset)
            # Cloned, for torch.save writes the whole storage that a view lies in.
            tensors[slot.name] = flat.reshape(slot.shape).clone()
        torch.save(tensors, file)

    def open(self, path: Path) -> StoredPart:
        """Map the file; tensors are read when their bytes are asked for."""
        import torch

        try:
            tensors = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except OSError:
            raise
        except Exception as error:
            first_line = str(error).partition("\n")[0]
            raise MalformedPartError(f"is no torch file of tensors: {first_line}") from None
        if not isinstance(tensors, dict) or not all(torch.is_tensor(value) for value in tensors.values()):
            raise MalformedPartError("is no torch file of a dict of tensors")
        slots = _slots(tensors)
        return StoredPart(PartContent(slots, {}), lambda: _read_blocks(tensors, slots))


def _slots(tensors: dict[str, Any]) -> tuple[TensorSlot, ...]:
    names = {f"torch.{torch_name}": name for name, torch_name in _TORCH_DTYPES.items()}
    slots: list[TensorSlot] = []
    offset = 0
    for name, tensor in tensors.items():
        if str(tensor.dtype) not in names or tensor.dim() < 1:
            raise MalformedPartError(f"{name} is {tensor.dtype} {list(tensor.shape)}")
        slots.append(TensorSlot(name, names[str(tensor.dtype)], tuple(tensor.shape), offset))
        offset += slots[-1].n_bytes
    if not slots or slots[-1].name != LOSS_MASK:
        raise MalformedPartError(f"does not end with {LOSS_MASK}")
    return tuple(slots)


def _read_blocks(tensors: dict[str, Any], slots: tuple[TensorSlot, ...]) -> Iterator[tuple[TensorSlot, memoryview]]:
    import torch

    for slot in slots:
        if slot.n_bytes:
            flat = tensors[slot.name].contiguous().reshape(-1).view(torch.uint8)
            yield slot, memoryview(flat.numpy())
