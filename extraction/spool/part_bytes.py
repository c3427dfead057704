"""Headers and digests of parts, wherever they lie: in a spool, in a store, on their way."""

from pathlib import Path
from typing import Any, BinaryIO

from auxtap.core.files import read_blocks
from auxtap.tap import protocol
from auxtap.tap.protocol import Header


def read_part_header(file: BinaryIO) -> tuple[Header, bytes]:
    """Read the header at the beginning of `file`, and return it with its own bytes.

    Raises:
        ProtocolError: it is none.
    """
    prefix = file.read(8)
    head = prefix + file.read(protocol.header_length(prefix) - 8)
    return protocol.decode_header(head), head


class ExpectedDigest:
    """A digest in the making and what it is to be."""

    def __init__(self, expected: str) -> None:
        """Begin; raises ProtocolError when `expected` is no digest."""
        self._algorithm, self._expected = protocol.split_digest(expected)
        self._digest: Any = protocol.new_digest(self._algorithm)

    def update(self, data: bytes | memoryview) -> None:
        """Add bytes."""
        self._digest.update(data)

    def agrees(self) -> bool:
        """Tell whether the bytes so far have the expected digest."""
        return bool(self._digest.hexdigest() == self._expected)

    @property
    def found(self) -> str:
        """The digest of the bytes so far."""
        return f"{self._algorithm}:{self._digest.hexdigest()}"


def digest_stream(file: BinaryIO, like: str) -> str:
    """Return the digest of the rest of `file`, by the algorithm of the digest `like`.

    Raises:
        ProtocolError: `like` is no digest.
    """
    digest = ExpectedDigest(like)
    for block in read_blocks(file):
        digest.update(block)
    return digest.found


def digest_file(path: Path, like: str) -> str:
    """Return the digest of a file; see `digest_stream`."""
    with path.open("rb") as file:
        return digest_stream(file, like)
