"""Hold one stored file against what manifest and ledger say of it, byte for byte."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from auxtap.extraction.spool.finite import is_finite
from auxtap.extraction.spool.part_bytes import ExpectedDigest
from auxtap.extraction.store.formats.stored_part import LOSS_MASK, PartFormat, StoredPart, stored_content
from auxtap.extraction.store.ledger import LedgerLine, LedgerPart
from auxtap.extraction.store.store import part_metadata
from auxtap.extraction.store.store_manifest import StageStates, StoreManifest
from auxtap.tap.protocol import (
    FINAL_TENSORS,
    HIDDEN_PREFIX,
    INPUT_IDS,
    PartLayout,
    part_layout,
)


@dataclass(frozen=True)
class PartClaim:
    """What a store says of one of its files."""

    manifest: StoreManifest
    stage: StageStates
    line: LedgerLine
    part: LedgerPart


def check_part_file(path: Path, part_format: PartFormat, claim: PartClaim, ids: bytearray) -> Iterator[str]:
    """Yield what is not as it must be; `ids` is filled with the prompt's int64 ids as the file has them.

    Raises:
        MalformedPartError: it is not of its format.
        ProtocolError: the ledger's digests are none.
        OSError: it cannot be read.
    """
    if path.is_symlink() or path.suffix != part_format.suffix:
        yield f"is no {part_format.name} file"
        return
    line, part = claim.line, claim.part
    size = path.stat().st_size
    if size != part.n_bytes:
        yield f"has {size} bytes, the ledger says {part.n_bytes}"
    stored = part_format.open(path)
    metadata = part_metadata(line.index, line.sample_id, part.stage, part.tap_digest)
    expected = stored_content(_layout(claim), metadata)
    if stored.content.slots != expected.slots or part.states != claim.stage.states:
        found = ", ".join(f"{slot.name} {slot.dtype} {list(slot.shape)}" for slot in stored.content.slots)
        yield f"holds {found}, which is not what the manifest says"
        return
    if stored.content.metadata and stored.content.metadata != expected.metadata:
        yield "its header is of another sample"
    yield from _check_bytes(line, part, path, stored, ids)


def _layout(claim: PartClaim) -> PartLayout:
    manifest, states = claim.manifest, claim.stage.states
    return part_layout(
        n_tokens=claim.line.n_tokens,
        layers=[int(state.removeprefix(HIDDEN_PREFIX)) for state in states if state.startswith(HIDDEN_PREFIX)],
        has_final=bool(set(FINAL_TENSORS[manifest.final]) & set(states)),
        hidden_size=manifest.model.hidden_size,
        dtype=manifest.dtype,
        final=manifest.final,
    )


def _check_bytes(line: LedgerLine, part: LedgerPart, path: Path, stored: StoredPart, ids: bytearray) -> Iterator[str]:
    whole, tap, echoed = (ExpectedDigest(text) for text in (part.digest, part.tap_digest, line.ids_digest))
    not_finite: set[str] = set()
    for slot, block in stored.digested_blocks(path, whole):
        if slot.name == LOSS_MASK:
            if bytes(block).strip(b"\x00\x01"):
                yield f"{LOSS_MASK} holds other values than 0 and 1"
            continue
        tap.update(block)
        if slot.name == INPUT_IDS:
            echoed.update(block)
            ids += block
        elif not is_finite(block, slot.dtype):
            not_finite.add(slot.name)
    for name in sorted(not_finite):
        yield f"{name} holds NaN or infinity"
    for digest, of in ((whole, "the file"), (tap, "the states"), (echoed, INPUT_IDS)):
        if not digest.agrees():
            yield f"the digest of {of} is not the ledger's"
