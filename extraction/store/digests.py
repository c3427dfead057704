"""Digest what lies in a store, with whatever algorithm the ledger names."""

from pathlib import Path
from typing import BinaryIO

from auxtap.tap import protocol

BLOCK_BYTES = 4 << 20


def digest_stream(file: BinaryIO, like: str) -> str:
    """Return the digest of the rest of `file`, by the algorithm of the digest `like`.

    Raises:
        ProtocolError: `like` is no digest.
    """
    algorithm, _ = protocol.split_digest(like)
    digest = protocol.new_digest(algorithm)
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
    return f"{algorithm}:{digest.hexdigest()}"


def digest_file(path: Path, like: str) -> str:
    """Return the digest of a file; see `digest_stream`."""
    with path.open("rb") as file:
        return digest_stream(file, like)
