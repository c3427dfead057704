"""What a storage format must do; one module a format."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from auxtap.core.files import read_blocks
from auxtap.extraction.spool.part_bytes import ExpectedDigest
from auxtap.tap.protocol import PartLayout, TensorSlot

LOSS_MASK = "loss_mask"


class MalformedPartError(Exception):
    """A stored file is not of its format."""


@dataclass(frozen=True)
class PartContent:
    """What a stored part holds: the tap's tensors as the tap laid them out, then `loss_mask` uint8 [tokens]."""

    slots: tuple[TensorSlot, ...]
    metadata: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class StoredPart:
    """A stored part that was opened; `blocks` reads its tensors' bytes in the order of the slots.

    Where `head` is given, it and all blocks together are the file, byte for byte.
    """

    content: PartContent
    blocks: Callable[[], Iterator[tuple[TensorSlot, memoryview]]]
    head: bytes | None = None

    def digested_blocks(self, path: Path, whole: ExpectedDigest) -> Iterator[tuple[TensorSlot, memoryview]]:
        """Read the blocks; after the last one `whole` has every byte of the file, which lies at `path`."""
        if self.head is not None:
            whole.update(self.head)
        for slot, block in self.blocks():
            if self.head is not None:
                whole.update(block)
            yield slot, block
        if self.head is None:
            with path.open("rb") as file:
                for data in read_blocks(file):
                    whole.update(data)


class PartFormat(Protocol):
    """A way to keep a part in one file."""

    @property
    def name(self) -> str:
        """The word for it on the command line."""

    @property
    def suffix(self) -> str:
        """How its files end, dot included."""

    def check_available(self) -> None:
        """Raise UsageError when a package that it needs is not installed."""

    def write(self, file: BinaryIO, content: PartContent, blocks: Iterable[memoryview], loss_mask: bytes) -> None:
        """Write a part; `blocks` are the tap's tensor bytes and may raise at any of them, the end included."""

    def open(self, path: Path) -> StoredPart:
        """Open a part without reading its tensors where the format allows it.

        Raises:
            MalformedPartError: it is not of this format, or not whole.
            OSError: it cannot be read.
        """


def stored_content(layout: PartLayout, metadata: Mapping[str, str]) -> PartContent:
    """Return the content of a stored part: the tap's layout with the loss mask behind it."""
    mask = TensorSlot(LOSS_MASK, "U8", (layout.n_tokens,), layout.data_bytes)
    return PartContent((*layout.slots, mask), metadata)
