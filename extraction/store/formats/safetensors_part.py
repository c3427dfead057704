"""safetensors: the tap's bytes as they came, under a header of the store's own."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from auxtap.core.files import read_blocks
from auxtap.extraction.spool.part_bytes import read_part_header
from auxtap.extraction.store.formats.stored_part import MalformedPartError, PartContent, StoredPart
from auxtap.tap import protocol
from auxtap.tap.protocol import Header, ProtocolError, TensorSlot


@dataclass(frozen=True)
class SafetensorsPart:
    """The default format: memory-mapped by any safetensors reader, never unpickled."""

    name: str = "safetensors"
    suffix: str = ".safetensors"

    def check_available(self) -> None:
        """Need nothing."""

    def write(self, file: BinaryIO, content: PartContent, blocks: Iterable[memoryview], loss_mask: bytes) -> None:
        """Write header, tensors and mask in one pass."""
        file.write(protocol.encode_header(content.slots, content.metadata))
        for block in blocks:
            file.write(block)
        file.write(loss_mask)

    def open(self, path: Path) -> StoredPart:
        """Read the header and hold the file's size against it."""
        with path.open("rb") as file:
            try:
                header, head = read_part_header(file)
            except ProtocolError as error:
                raise MalformedPartError(str(error)) from None
        size = path.stat().st_size
        if size != header.n_bytes + header.data_bytes:
            raise MalformedPartError(f"has {size} bytes, its header says {header.n_bytes + header.data_bytes}")
        return StoredPart(PartContent(header.slots, header.metadata), lambda: _read_blocks(path, header), head)


def _read_blocks(path: Path, header: Header) -> Iterator[tuple[TensorSlot, memoryview]]:
    with path.open("rb") as file:
        file.seek(header.n_bytes)
        for slot in header.slots:
            left = slot.n_bytes
            for block in read_blocks(file, slot.n_bytes):
                left -= len(block)
                yield slot, memoryview(block)
            if left:
                raise MalformedPartError(f"ends within {slot.name}")
