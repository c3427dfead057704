"""Read whole samples of a store into memory, each byte held against the ledger's digests."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from auxtap.core.errors import IntegrityError
from auxtap.extraction.export.contract import TokenRow
from auxtap.extraction.export.whole_sample import Bytes, SamplePlace, WholeSample
from auxtap.extraction.spool.part_bytes import ExpectedDigest, read_part_header
from auxtap.extraction.store.formats.part_formats import part_format
from auxtap.extraction.store.formats.stored_part import LOSS_MASK, MalformedPartError, PartFormat
from auxtap.extraction.store.ledger import LedgerLine, LedgerPart
from auxtap.extraction.store.store_manifest import StoreManifest
from auxtap.tap.protocol import (
    HIDDEN_PREFIX,
    INPUT_IDS,
    ProtocolError,
    TensorSlot,
)

_CHECK = "auxtap check tells what else is wrong; remove it and extract again"


@dataclass(frozen=True)
class WholeReader:
    """Reads samples of the store at `path`; `layers` and `finals` are the states that are wanted."""

    path: Path
    manifest: StoreManifest
    layers: tuple[int, ...]
    finals: tuple[str, ...]

    def read(self, line: LedgerLine, row: int) -> WholeSample:
        """Read a sample.

        Raises:
            IntegrityError: a file is missing, not of its format, or not what the ledger says.
        """
        found: dict[str, Bytes] = {}
        for part in line.parts:
            found |= self._read_part(part)
        names = [*(f"{HIDDEN_PREFIX}{layer}" for layer in self.layers), *self.finals]
        missing = [name for name in (INPUT_IDS, LOSS_MASK, *names) if name not in found]
        if missing:
            raise IntegrityError(f"sample {line.sample_id} of {self.path} has no {', '.join(missing)}", hint=_CHECK)
        ids = found[INPUT_IDS].view(np.int64)
        return WholeSample(
            place=SamplePlace(line.index, row, line.sample_id, line.n_tokens),
            dtype=self.manifest.dtype,
            hidden_size=self.manifest.model.hidden_size,
            layers=self.layers,
            input_ids=ids,
            loss_mask=found[LOSS_MASK],
            states={name: found[name].reshape(len(ids), -1) for name in names},
        )

    def read_tokens(self, line: LedgerLine, row: int) -> TokenRow:
        """Read ids and mask alone, from the sample's first part; its other tensors stay unread where that can be.

        Raises:
            IntegrityError: the file is missing or not of its format.
        """
        path = self.path / line.parts[0].file
        try:
            if path.suffix == ".safetensors":
                ids, mask = _tokens_of_safetensors(path)
            else:
                found = self._read_part(line.parts[0])
                ids, mask = found[INPUT_IDS], found[LOSS_MASK]
        except OSError as error:
            raise IntegrityError(f"{path} cannot be read: {error.strerror or error}", hint=_CHECK) from None
        return TokenRow(SamplePlace(line.index, row, line.sample_id, line.n_tokens), ids.view(np.int64), mask)

    def _read_part(self, part: LedgerPart) -> dict[str, Bytes]:
        path = self.path / part.file
        try:
            return _read_checked(part_format(self.manifest.part_format), path, part)
        except OSError as error:
            raise IntegrityError(f"{path} cannot be read: {error.strerror or error}", hint=_CHECK) from None
        except MalformedPartError as error:
            raise IntegrityError(f"{path} {error}", hint=_CHECK) from None


def _read_checked(kind: PartFormat, path: Path, part: LedgerPart) -> dict[str, Bytes]:
    whole = ExpectedDigest(part.digest)
    stored = kind.open(path)
    found = {slot.name: np.empty(slot.n_bytes, dtype=np.uint8) for slot in stored.content.slots}
    done = dict.fromkeys(found, 0)
    for slot, block in stored.digested_blocks(path, whole):
        data = np.frombuffer(block, dtype=np.uint8)
        found[slot.name][done[slot.name] : done[slot.name] + len(data)] = data
        done[slot.name] += len(data)
    if not whole.agrees():
        raise IntegrityError(f"{path} does not have the digest that the ledger says", hint=_CHECK)
    return found


def _tokens_of_safetensors(path: Path) -> tuple[Bytes, Bytes]:
    with path.open("rb") as file:
        try:
            header, _ = read_part_header(file)
        except ProtocolError as error:
            raise IntegrityError(f"{path}: {error}", hint=_CHECK) from None

        def read(slot: TensorSlot) -> Bytes:
            file.seek(header.n_bytes + slot.offset)
            return np.frombuffer(file.read(slot.n_bytes), dtype=np.uint8)

        slots = {slot.name: slot for slot in header.slots}
        return read(slots[INPUT_IDS]), read(slots[LOSS_MASK])
